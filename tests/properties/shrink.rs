//! Makes a failing history short: takes away ever smaller runs of actions for as long as the same property still fails.

/// Histories tried before the shrinker is content with what it has.
const TRIES_MAX: u32 = 20_000;

/// The shortest history found that still fails; `fails` of the whole history has to be true.
pub(super) fn shrink<T: Clone>(history: &[T], fails: impl Fn(&[T]) -> bool) -> Vec<T> {
    let mut shortest = history.to_vec();
    let mut size = shortest.len().div_ceil(2);
    let mut tries = 0;
    while size > 0 && tries < TRIES_MAX {
        let before = shortest.len();
        let mut from = 0;
        while from < shortest.len() && tries < TRIES_MAX {
            let to = (from + size).min(shortest.len());
            let rest = [&shortest[..from], &shortest[to..]].concat();
            tries += 1;
            if fails(&rest) { shortest = rest } else { from = to }
        }
        // One by one until nothing more can go.
        let is_final_pass_unfinished = size == 1 && shortest.len() < before;
        size = if is_final_pass_unfinished { 1 } else { size / 2 };
    }
    shortest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shrunk_history_keeps_only_what_fails() {
        let history: Vec<u32> = (0..1_000).collect();
        let fails = |part: &[u32]| part.contains(&17) && part.contains(&800) && part.iter().any(|n| n % 100 == 99);
        let shortest = shrink(&history, fails);
        assert_eq!(shortest.len(), 3, "{shortest:?}");
        assert!(fails(&shortest));
    }

    #[test]
    fn what_always_fails_shrinks_to_nothing_and_what_needs_all_stays() {
        assert_eq!(shrink(&[1, 2, 3], |_| true), Vec::<i32>::new());
        assert_eq!(shrink(&[1, 2, 3], |part| part.len() == 3), vec![1, 2, 3]);
    }
}
