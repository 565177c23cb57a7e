//! How many requests run at once, how many wait, and when one is refused.
//!
//! A permit is taken before an app sees the request and is carried by the body
//! of the answer to its last byte. In-process calls ride on the permit of the
//! request that made them: a host full of outer requests never waits for
//! itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// One request in flight; freed when dropped.
#[derive(Debug)]
pub struct Permit(#[expect(dead_code, reason = "held for its drop")] OwnedSemaphorePermit);

/// Why a request was not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    QueueFull,
    WaitedTooLong,
}

pub struct Admission {
    permits: Arc<Semaphore>,
    waiting: AtomicUsize,
    queue: usize,
    longest_wait: Duration,
}

impl Admission {
    pub fn new(requests: usize, queue: usize, longest_wait: Duration) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(requests.min(Semaphore::MAX_PERMITS))),
            waiting: AtomicUsize::new(0),
            queue,
            longest_wait,
        }
    }

    pub async fn admit(&self) -> Result<Permit, Refused> {
        if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
            return Ok(Permit(permit));
        }
        let _place = self.queue_up().ok_or(Refused::QueueFull)?;
        let permit = Arc::clone(&self.permits).acquire_owned();
        match tokio::time::timeout(self.longest_wait, permit).await {
            Ok(permit) => Ok(Permit(permit.expect("the semaphore is never closed"))),
            Err(_) => Err(Refused::WaitedTooLong),
        }
    }

    fn queue_up(&self) -> Option<Place<'_>> {
        let taken = self.waiting.fetch_add(1, Ordering::Relaxed);
        let place = Place(&self.waiting);
        (taken < self.queue).then_some(place)
    }
}

/// A place in the queue, given back when its request goes on or gives up.
struct Place<'a>(&'a AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn beyond_requests_and_queue_a_request_is_refused_at_once() {
        let admission = Arc::new(Admission::new(1, 1, Duration::from_secs(5)));
        let first = admission.admit().await.unwrap();
        let second = tokio::spawn({
            let admission = Arc::clone(&admission);
            async move { admission.admit().await }
        });
        tokio::task::yield_now().await;
        assert_eq!(admission.admit().await.unwrap_err(), Refused::QueueFull);
        drop(first);
        assert!(second.await.unwrap().is_ok());
    }

    #[tokio::test]
    async fn one_that_waits_too_long_is_refused_and_gives_its_place_back() {
        let admission = Admission::new(1, 1, Duration::from_millis(1));
        let _first = admission.admit().await.unwrap();
        for _ in 0..2 {
            assert_eq!(admission.admit().await.unwrap_err(), Refused::WaitedTooLong);
        }
    }
}
