//! The page as it was last rendered, for all who look at it: a rendering asks for the curves of its jobs, and the page reloads by
//! itself, so without this each viewer would cost as much as all of them together.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use super::error::ApiError;

/// How long a rendering may be shown while the journal has no new entry: what ranks report comes without one.
const AGE_MAX: Duration = Duration::from_secs(1);
/// The page reloads after this many times as long as its rendering took.
const RELOAD_TIMES: u32 = 50;
/// The shortest and the longest time between two reloads.
const RELOAD_MIN: Duration = Duration::from_secs(2);
const RELOAD_MAX: Duration = Duration::from_secs(30);

/// The last rendering.
#[derive(Debug, Default)]
pub(super) struct Rendering {
    last: Mutex<Option<Rendered>>,
}

#[derive(Clone, Debug)]
struct Rendered {
    page: Arc<str>,
    at: Instant,
    took: Duration,
    /// The journal's entries before it was rendered.
    entries: u64,
}

impl Rendering {
    /// Returns the last rendering if it is of now; otherwise one made by `render`, which gets the time after which the page is to
    /// reload. Whoever comes meanwhile waits for the same rendering.
    pub(super) async fn page<F>(&self, entries: u64, render: impl FnOnce(Duration) -> F) -> Result<Arc<str>, ApiError>
    where
        F: Future<Output = Result<String, ApiError>>,
    {
        let mut last = self.last.lock().await;
        if let Some(rendered) = last.as_ref().filter(|last| last.entries >= entries && last.at.elapsed() < AGE_MAX) {
            return Ok(Arc::clone(&rendered.page));
        }
        let reload = last.as_ref().map_or(RELOAD_MIN, |last| reload_after(last.took));
        let at = Instant::now();
        let page: Arc<str> = render(reload).await?.into();
        *last = Some(Rendered { page: Arc::clone(&page), at, took: at.elapsed(), entries });
        Ok(page)
    }
}

/// Returns the time after which a page reloads whose rendering took so long.
fn reload_after(took: Duration) -> Duration {
    took.saturating_mul(RELOAD_TIMES).clamp(RELOAD_MIN, RELOAD_MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    async fn page(rendering: &Rendering, entries: u64, made: &AtomicU32) -> Arc<str> {
        let render = async |_| {
            tokio::task::yield_now().await;
            Ok(made.fetch_add(1, Ordering::Relaxed).to_string())
        };
        rendering.page(entries, render).await.unwrap()
    }

    #[tokio::test]
    async fn all_viewers_share_a_rendering_until_something_happens() {
        let (rendering, made) = (Rendering::default(), AtomicU32::new(0));
        let viewers = tokio::join!(page(&rendering, 5, &made), page(&rendering, 5, &made), page(&rendering, 5, &made));
        assert_eq!([&*viewers.0, &*viewers.1, &*viewers.2], ["0", "0", "0"]);
        assert_eq!(&*page(&rendering, 6, &made).await, "1", "the journal has a new entry");
        assert_eq!(&*page(&rendering, 5, &made).await, "1", "nobody sees an older page");
        tokio::time::sleep(AGE_MAX).await;
        assert_eq!(&*page(&rendering, 6, &made).await, "2", "ranks may have reported");
    }

    #[tokio::test]
    async fn a_rendering_that_failed_is_tried_again() {
        let (rendering, made) = (Rendering::default(), AtomicU32::new(0));
        let failed = rendering.page(5, async |_| Err(ApiError::internal("no"))).await;
        assert!(failed.is_err());
        assert_eq!(&*page(&rendering, 5, &made).await, "0");
    }

    #[test]
    fn a_page_that_takes_long_reloads_seldom() {
        let check = |millis: u64, seconds: u64| {
            assert_eq!(reload_after(Duration::from_millis(millis)), Duration::from_secs(seconds), "{millis} ms");
        };
        check(3, 2);
        check(100, 5);
        check(2_000, 30);
    }
}
