//! A guest's request on its way to an upstream.
//!
//! A guest writes the head of a request and then its body, in steps. To send
//! each step as it comes would put a small request into several packets, so
//! the request is held until its body is complete, 16 KiB of it are there, or
//! the guest is suspended and can write no more. No timer is needed: a guest
//! that waits for the response is suspended.

use super::RequestBody;
use crate::suspension::Written;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use tokio::sync::Notify;

/// Bytes of a body that are worth a packet of their own.
const ENOUGH: usize = 16 << 10;

/// A request body as hyper takes it. What hyper has not begun to take can be
/// had back with [`Handle::untouched`].
pub struct Sending<B: Body>(Arc<Shared<B>>);

/// The other side of a [`Sending`].
pub struct Handle<B: Body>(Arc<Shared<B>>);

struct Shared<B: Body> {
    parts: Mutex<Parts<B>>,
    touched: AtomicBool,
    over: AtomicBool,
    ended: Notify,
}

struct Parts<B: Body> {
    held: VecDeque<Result<Frame<Bytes>, B::Error>>,
    /// `None` once it has ended, or failed.
    rest: Option<B>,
    exact: Option<u64>,
}

impl<B: RequestBody> Sending<B> {
    /// Holds `body` as long as its guest may be about to add to it.
    pub async fn hold(body: B, written: &Written) -> (Self, Handle<B>) {
        let mut parts = Parts {
            held: VecDeque::new(),
            exact: body.size_hint().exact(),
            rest: Some(body),
        };
        let mut suspended = std::pin::pin!(written.suspended());
        let mut size = 0;
        let mut is_suspended = false;
        poll_fn(|cx| {
            loop {
                let Some(rest) = parts.rest.as_mut().filter(|_| size < ENOUGH) else {
                    return Poll::Ready(());
                };
                if rest.is_end_stream() {
                    parts.rest = None;
                    return Poll::Ready(());
                }
                match Pin::new(rest).poll_frame(cx) {
                    Poll::Ready(Some(Ok(frame))) => {
                        size += frame.data_ref().map_or(0, Bytes::len);
                        parts.held.push_back(Ok(frame));
                    }
                    Poll::Ready(Some(Err(error))) => {
                        parts.held.push_back(Err(error));
                        parts.rest = None;
                    }
                    Poll::Ready(None) => parts.rest = None,
                    Poll::Pending if is_suspended => return Poll::Ready(()),
                    Poll::Pending => {
                        ready!(suspended.as_mut().poll(cx));
                        // What was written before is there now.
                        is_suspended = true;
                    }
                }
            }
        })
        .await;
        Self::new(parts)
    }

    fn new(parts: Parts<B>) -> (Self, Handle<B>) {
        let shared = Arc::new(Shared {
            parts: Mutex::new(parts),
            touched: AtomicBool::new(false),
            over: AtomicBool::new(false),
            ended: Notify::new(),
        });
        (Self(Arc::clone(&shared)), Handle(shared))
    }
}

impl<B: Body> Clone for Handle<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B: RequestBody> Handle<B> {
    /// The body, to be sent again, if nothing of it was taken yet.
    pub fn untouched(&self) -> Option<(Sending<B>, Handle<B>)> {
        if self.0.touched.load(Ordering::Acquire) {
            return None;
        }
        let mut parts = self.0.parts();
        Some(Sending::new(Parts {
            held: std::mem::take(&mut parts.held),
            rest: parts.rest.take(),
            exact: parts.exact,
        }))
    }

    /// Whether the body has been sent to its end, or given up.
    pub fn is_over(&self) -> bool {
        self.0.over.load(Ordering::Acquire)
    }

    /// Waits for that.
    pub async fn over(&self) {
        let mut ended = std::pin::pin!(self.0.ended.notified());
        ended.as_mut().enable();
        if !self.is_over() {
            ended.await;
        }
    }
}

impl<B: Body> Shared<B> {
    fn parts(&self) -> MutexGuard<'_, Parts<B>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        if !self.over.swap(true, Ordering::AcqRel) {
            self.ended.notify_waiters();
        }
    }
}

impl<B: Body> Drop for Sending<B> {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl<B: RequestBody> Body for Sending<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let mut parts = self.0.parts();
        if let Some(frame) = parts.held.pop_front() {
            self.0.touched.store(true, Ordering::Release);
            return Poll::Ready(Some(frame));
        }
        let Some(rest) = &mut parts.rest else {
            return Poll::Ready(None);
        };
        let frame = ready!(Pin::new(rest).poll_frame(cx));
        self.0.touched.store(true, Ordering::Release);
        if frame.is_none() {
            parts.rest = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        let parts = self.0.parts();
        parts.held.is_empty() && parts.rest.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let parts = self.0.parts();
        match (parts.exact, &parts.rest) {
            (Some(bytes), _) => SizeHint::with_exact(bytes),
            (None, None) if parts.held.is_empty() => SizeHint::with_exact(0),
            // The guest gave no length, so none is sent, known or not.
            (None, _) => SizeHint::default(),
        }
    }
}
