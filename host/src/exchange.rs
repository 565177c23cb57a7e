//! One request and its answer, as every layer between the socket and the
//! guest sees it.
//!
//! The exchange is made when the head of a request has been read and lives
//! until the last byte of the answer is out. It carries what has to travel
//! against the flow: "the client has gone" from the socket to the guest and to
//! the guest's own outgoing requests, and "the guest has failed" from the
//! instance to the body that is being written. It decides nothing.

use crate::outcome::Failure;
use futures::task::AtomicWaker;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

/// Names one exchange in the log and towards the client: 64 random bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RequestId(u64);

impl RequestId {
    pub fn random() -> Self {
        Self(rand::random())
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// See the module's documentation.
pub struct Exchange {
    pub id: RequestId,
    /// The app that answers.
    pub app: Arc<str>,
    /// How many in-process calls led here: 0 for a request from a socket.
    pub depth: u8,
    /// How often the request has passed through a host already, `CDN-Loop`.
    pub passes: u8,
    /// Whether the client used TLS, which is what a guest is told as scheme.
    pub https: bool,
    /// Ticks of the engine's clock that a guest computed for this.
    computed: AtomicU32,
    cancelled: AtomicBool,
    gone: Arc<Notify>,
    worker: AtomicWaker,
    finished: OnceLock<Instant>,
    settled: AtomicBool,
    settling: Notify,
    failure: Mutex<Option<Arc<Failure>>>,
}

impl Exchange {
    pub fn new(app: Arc<str>, depth: u8, passes: u8, https: bool) -> Arc<Self> {
        Arc::new(Self {
            id: RequestId::random(),
            app,
            depth,
            passes,
            https,
            computed: AtomicU32::new(0),
            cancelled: AtomicBool::new(false),
            gone: Arc::new(Notify::new()),
            worker: AtomicWaker::new(),
            finished: OnceLock::new(),
            settled: AtomicBool::new(false),
            settling: Notify::new(),
            failure: Mutex::new(None),
        })
    }

    /// Charges one tick of computing; returns how many there are now.
    pub fn charge_tick(&self) -> u32 {
        self.computed.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The guest has something to show for what it computed.
    pub fn progress(&self) {
        self.computed.store(0, Ordering::Relaxed);
    }

    /// Nobody waits for the answer any more: ends the guest, where it has an
    /// instance to itself, and every outgoing request made for this exchange.
    pub fn cancel(&self) {
        if !self.cancelled.swap(true, Ordering::AcqRel) {
            self.gone.notify_waiters();
            self.worker.wake();
        }
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// Resolves when the exchange is cancelled. The future must be polled once
    /// before `is_cancelled` is asked, or a cancellation between the two is
    /// missed; [`Cancelled`](Self::cancelled) does both in that order.
    pub fn notified(&self) -> OwnedNotified {
        Arc::clone(&self.gone).notified_owned()
    }

    /// Waits until the exchange is cancelled.
    pub async fn cancelled(&self) {
        let mut gone = std::pin::pin!(self.gone.notified());
        gone.as_mut().enable();
        if !self.is_cancelled() {
            gone.await;
        }
    }

    /// The answer is complete. The guest may go on with other work.
    pub fn finish(&self) {
        if self.finished.set(Instant::now()).is_ok() {
            self.worker.wake();
        }
    }

    pub fn is_finished(&self) -> bool {
        self.finished.get().is_some()
    }

    /// How long ago the answer was complete.
    pub fn finished_for(&self) -> Option<Duration> {
        self.finished.get().map(Instant::elapsed)
    }

    /// Lets [`cancel`](Self::cancel) and [`finish`](Self::finish) wake the
    /// worker that runs the guest.
    pub fn wake_worker(&self, waker: &std::task::Waker) {
        self.worker.register(waker);
    }

    /// Records why the guest failed; the first reason stays.
    pub fn fail(&self, failure: Arc<Failure>) {
        self.lock_failure().get_or_insert(failure);
    }

    pub fn failure(&self) -> Option<Arc<Failure>> {
        self.lock_failure().clone()
    }

    /// Before the request is run once more.
    pub fn forget_failure(&self) {
        *self.lock_failure() = None;
        self.settled.store(false, Ordering::Release);
    }

    /// The instance is through with this exchange, or has been lost: whatever
    /// reason there is for a missing answer, [`failure`](Self::failure) has it.
    pub fn settle(&self) {
        self.settled.store(true, Ordering::Release);
        self.settling.notify_waiters();
    }

    pub async fn settled(&self) {
        let mut settling = std::pin::pin!(self.settling.notified());
        settling.as_mut().enable();
        if !self.settled.load(Ordering::Acquire) {
            settling.await;
        }
    }

    fn lock_failure(&self) -> MutexGuard<'_, Option<Arc<Failure>>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
