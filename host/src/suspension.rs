//! When a guest was suspended.
//!
//! A guest that is suspended has written all that it can write for now. Who
//! gathers what it writes (a request's head and body, say) waits for that, and
//! for no time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;

/// Counts the suspensions of one instance.
#[derive(Default)]
pub struct Suspensions {
    count: AtomicU64,
    more: Notify,
}

impl Suspensions {
    /// The instance's guest has just been suspended.
    pub fn add(&self) {
        self.count.fetch_add(1, Ordering::AcqRel);
        self.more.notify_waiters();
    }

    /// To be called while the guest runs.
    pub fn watch(self: &Arc<Self>) -> Written {
        Written {
            since: self.count.load(Ordering::Acquire),
            suspensions: Arc::clone(self),
        }
    }
}

/// What a guest writes from the moment when this was made.
pub struct Written {
    suspensions: Arc<Suspensions>,
    since: u64,
}

impl Written {
    /// Waits until the guest is suspended for the first time after that.
    pub async fn suspended(&self) {
        let mut more = std::pin::pin!(self.suspensions.more.notified());
        more.as_mut().enable();
        if self.suspensions.count.load(Ordering::Acquire) == self.since {
            more.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    #[test]
    fn a_suspension_counts_whether_or_not_it_is_waited_for() {
        let suspensions = Arc::new(Suspensions::default());
        suspensions.add();
        let written = suspensions.watch();
        assert!(written.suspended().now_or_never().is_none());
        suspensions.add();
        assert!(written.suspended().now_or_never().is_some());
    }
}
