//! Bodies of responses on their way to the guest that asked for them.
//!
//! [`Watched`] adds to any body what it has not: a deadline between two frames
//! and an end when the exchange is cancelled. [`Pooled`] is what comes from an
//! upstream: it gives the connection back once everything has been read.

use super::pool::Lease;
use super::request::Handle;
use super::{Error, RequestBody, classify};
use crate::exchange::Exchange;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::sync::futures::OwnedNotified;
use tokio::time::Sleep;

/// Bytes of a response that are read for the sake of the request's body.
const MOST_DRAINED: usize = 16 << 20;

/// Why a body that was watched was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupted {
    /// No frame came in time.
    BetweenBytes,
    /// The exchange that the body was for is over.
    Cancelled,
}

pub struct Watched<B> {
    /// `None` once it has ended or failed.
    body: Option<B>,
    exchange: Arc<Exchange>,
    between_bytes: Duration,
    /// Made only when a frame has to be waited for.
    wait: Option<Pin<Box<Wait>>>,
}

pin_project_lite::pin_project! {
    struct Wait {
        #[pin]
        timer: Sleep,
        #[pin]
        gone: OwnedNotified,
    }
}

impl<B> Watched<B> {
    pub fn new(body: B, exchange: Arc<Exchange>, between_bytes: Duration) -> Self {
        Self {
            body: Some(body),
            exchange,
            between_bytes,
            wait: None,
        }
    }

    fn poll_interrupted(&mut self, cx: &mut Context<'_>) -> Poll<Interrupted> {
        let wait = self.wait.get_or_insert_with(|| {
            Box::pin(Wait {
                timer: tokio::time::sleep(self.between_bytes),
                gone: self.exchange.notified(),
            })
        });
        let wait = wait.as_mut().project();
        if wait.gone.poll(cx).is_ready() || self.exchange.is_cancelled() {
            return Poll::Ready(Interrupted::Cancelled);
        }
        wait.timer.poll(cx).map(|()| Interrupted::BetweenBytes)
    }
}

impl<B> Body for Watched<B>
where
    B: Body<Data = Bytes, Error: From<Interrupted>> + Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        loop {
            let Some(body) = &mut self.body else {
                return Poll::Ready(None);
            };
            match Pin::new(body).poll_frame(cx) {
                // A guest that reads an empty frame would take it for the end.
                Poll::Ready(Some(Ok(frame))) if frame.data_ref().is_some_and(Bytes::is_empty) => {}
                Poll::Ready(Some(Ok(frame))) => {
                    self.wait = None;
                    return Poll::Ready(Some(Ok(frame)));
                }
                Poll::Ready(end) => {
                    self.body = None;
                    return Poll::Ready(end);
                }
                Poll::Pending => {
                    let interrupted = ready!(self.poll_interrupted(cx));
                    self.body = None;
                    return Poll::Ready(Some(Err(interrupted.into())));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Some(body) => body.size_hint(),
            None => SizeHint::with_exact(0),
        }
    }
}

/// The body of an upstream's response.
///
/// Dropped half-way, it closes its connection; but as long as the request's
/// own body is still being sent, which would be cut off with it, the rest of
/// the response is read and thrown away.
pub struct Pooled<B: RequestBody> {
    /// `None` once it has ended or failed.
    open: Option<Open<B>>,
}

struct Open<B: RequestBody> {
    incoming: Incoming,
    lease: Lease<B>,
    request: Handle<B>,
    longest_drain: Duration,
}

impl<B: RequestBody> Pooled<B> {
    pub(super) fn new(
        incoming: Incoming,
        lease: Lease<B>,
        request: Handle<B>,
        longest_drain: Duration,
    ) -> Self {
        let mut body = Self {
            open: Some(Open {
                incoming,
                lease,
                request,
                longest_drain,
            }),
        };
        body.release_if_ended();
        body
    }

    fn release_if_ended(&mut self) {
        let ended = self.open.take_if(|open| open.incoming.is_end_stream());
        if let Some(open) = ended {
            open.lease.release();
        }
    }
}

impl<B: RequestBody> Body for Pooled<B> {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let Some(open) = &mut self.open else {
            return Poll::Ready(None);
        };
        match ready!(Pin::new(&mut open.incoming).poll_frame(cx)) {
            Some(Ok(frame)) => {
                self.release_if_ended();
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(error)) => {
                self.open = None;
                Poll::Ready(Some(Err(classify(&error))))
            }
            None => {
                let open = self.open.take().expect("it was open above");
                open.lease.release();
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let open = self.open.as_ref();
        open.is_none_or(|open| open.incoming.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.open {
            Some(open) => open.incoming.size_hint(),
            None => SizeHint::with_exact(0),
        }
    }
}

impl<B: RequestBody> Drop for Pooled<B> {
    fn drop(&mut self) {
        if let Some(open) = self.open.take_if(|open| !open.request.is_over()) {
            tokio::spawn(drain(open));
        }
    }
}

/// Ends with the request's body or the response, or when it has taken too long
/// or too much.
async fn drain<B: RequestBody>(open: Open<B>) {
    let Open {
        mut incoming,
        lease,
        request,
        longest_drain,
    } = open;
    let mut drained = 0;
    let read = async {
        while let Some(Ok(frame)) = incoming.frame().await {
            drained += frame.data_ref().map_or(0, Bytes::len);
            if drained > MOST_DRAINED {
                return false;
            }
        }
        request.over().await;
        true
    };
    let whole = tokio::select! {
        whole = tokio::time::timeout(longest_drain, read) => whole.unwrap_or(false),
        () = request.over() => false,
    };
    if whole {
        lease.release();
    }
}
