//! Threads that can wait leave the processors to those that can't.

/// How far a thread stands back, as `nice` counts: it gets a tenth of a processor that another thread wants whole.
const NICENESS: i32 = 10;

/// Lowers the priority of the calling thread for good, so that work in bulk doesn't delay requests and decisions.
pub fn lower_priority() {
    // Linux counts by threads. If it refuses, the thread works on as before.
    let _ = rustix::process::nice(NICENESS);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_calling_thread_stands_back() {
        let niceness = || rustix::process::getpriority_process(None).expect("it is readable");
        let before = niceness();
        let of_thread = std::thread::spawn(move || {
            lower_priority();
            niceness()
        });
        assert_eq!(of_thread.join().expect("it doesn't panic"), (before + NICENESS).min(19));
        assert_eq!(niceness(), before);
    }
}
