//! The body of an answer on its way to the client.
//!
//! It carries what a request holds until its last byte: the permit, the
//! version and the exchange. And it keeps the promise that a failure never
//! looks like success: when the guest has failed, its body ends in an error,
//! and so does the connection, never in a well-formed end.

use crate::admission::Permit;
use crate::component::Version;
use crate::exchange::Exchange;
use crate::outcome::{Failure, Kind};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use wasmtime_wasi_http::{Error, WasiBody};

pub struct Answer {
    state: State,
    /// Bytes that `Content-Length` promises and that are still to come. hyper
    /// drops a body as soon as it has them all.
    promised: Option<u64>,
    /// What the host says itself needs none.
    held: Option<Held>,
}

/// Dropped with the body, in this order.
struct Held {
    exchange: Arc<Exchange>,
    _version: Arc<Version>,
    _permit: Option<Permit>,
}

/// How long a guest's answer is on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// There is no body, whatever the guest writes, RFC 9110 section 6.4.1.
    None,
    /// As `Content-Length` says.
    Promised(u64),
    Unknown,
}

enum State {
    /// Of a guest's.
    Streaming(WasiBody),
    /// The guest's body has ended in an error, which the next poll gives on.
    Failing(Error),
    /// A text of ours.
    Text(Bytes),
    Ended,
}

impl Answer {
    /// The body of a guest's answer.
    pub fn of_guest(
        body: WasiBody,
        length: Length,
        exchange: Arc<Exchange>,
        version: Arc<Version>,
        permit: Option<Permit>,
    ) -> Self {
        let (state, promised) = match length {
            Length::None => (State::Ended, None),
            Length::Promised(bytes) => (State::Streaming(body), Some(bytes)),
            Length::Unknown => (State::Streaming(body), None),
        };
        if matches!(length, Length::None | Length::Promised(0)) {
            exchange.finish();
        }
        Self {
            state,
            promised,
            held: Some(Held {
                exchange,
                _version: version,
                _permit: permit,
            }),
        }
    }

    pub fn text(text: String) -> Self {
        Self {
            state: State::Text(text.into()),
            promised: None,
            held: None,
        }
    }

    /// Whether the host answers, and not a guest.
    pub fn is_ours(&self) -> bool {
        self.held.is_none()
    }

    fn failure(&self) -> Option<Arc<Failure>> {
        self.held.as_ref()?.exchange.failure()
    }

    fn too_short(&self) -> Option<Arc<Failure>> {
        let missing = self.promised.filter(|bytes| *bytes > 0)?;
        let cause = format_args!("the body ended {missing} bytes before its Content-Length");
        Some(Arc::new(Failure::new(Kind::BrokenBody, cause)))
    }

    /// hyper would cut it off, and nobody would notice.
    fn is_too_long(&self, frame: &Frame<Bytes>) -> bool {
        let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
        self.promised.is_some_and(|promised| bytes > promised)
    }

    fn count(&mut self, frame: &Frame<Bytes>) {
        if let Some(held) = &self.held {
            held.exchange.progress();
        }
        let Some(data) = frame.data_ref() else { return };
        let Some(promised) = &mut self.promised else {
            return;
        };
        *promised -= data.len() as u64;
        if *promised == 0
            && let Some(held) = &self.held
        {
            held.exchange.finish();
        }
    }

    fn end(&mut self) {
        self.state = State::Ended;
        if let Some(held) = self.held.take() {
            held.exchange.finish();
        }
    }

    /// Ends the body in an error, after this poll: hyper drops what it has not
    /// yet written when an error comes, so what was sent before gets its turn
    /// first.
    fn fail(&mut self, error: Error, failure: &Failure, cx: &mut Context<'_>) {
        if let Some(held) = self.held.take() {
            held.exchange.cancel();
            let Exchange { id, app, .. } = &*held.exchange;
            tracing::error!("request {id} app {app}: after the head of the answer: {failure}");
        }
        self.state = State::Failing(error);
        cx.waker().wake_by_ref();
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let body = match &mut self.state {
            State::Streaming(body) => body,
            State::Text(text) => {
                let text = std::mem::take(text);
                self.state = State::Ended;
                return Poll::Ready((!text.is_empty()).then(|| Ok(Frame::data(text))));
            }
            State::Ended => return Poll::Ready(None),
            State::Failing(_) => {
                let State::Failing(error) = std::mem::replace(&mut self.state, State::Ended) else {
                    unreachable!("matched above");
                };
                return Poll::Ready(Some(Err(error)));
            }
        };
        match std::task::ready!(Pin::new(body).poll_frame(cx)) {
            Some(Ok(frame)) if self.is_too_long(&frame) => {
                let failure = Failure::new(Kind::BrokenBody, "the body exceeds its Content-Length");
                self.fail(Error::HttpResponseBodySize(None), &failure, cx);
                Poll::Pending
            }
            Some(Ok(frame)) => {
                self.count(&frame);
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(error)) => {
                let failure = self.failure();
                let failure = failure.map_or_else(
                    || Failure::new(Kind::BrokenBody, &error),
                    |failure| Failure::clone(&failure),
                );
                self.fail(error, &failure, cx);
                Poll::Pending
            }
            // A lost store drops the senders of its bodies, which looks like
            // their end; the exchange was told before.
            None => match self.failure().or_else(|| self.too_short()) {
                Some(failure) => {
                    let error = Error::InternalError(Some(failure.kind.sentence().into()));
                    self.fail(error, &failure, cx);
                    Poll::Pending
                }
                None => {
                    self.end();
                    Poll::Ready(None)
                }
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.state {
            State::Streaming(body) => body.is_end_stream() && self.failure().is_none(),
            State::Failing(_) => false,
            State::Text(text) => text.is_empty(),
            State::Ended => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.state {
            State::Streaming(body) => body.size_hint(),
            State::Failing(_) => SizeHint::default(),
            State::Text(text) => SizeHint::with_exact(text.len() as u64),
            State::Ended => SizeHint::with_exact(0),
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let complete = self.is_end_stream();
        let Some(held) = &self.held else { return };
        if complete || held.exchange.is_finished() {
            held.exchange.finish();
        } else {
            held.exchange.cancel();
            let Exchange { id, app, .. } = &*held.exchange;
            tracing::info!("request {id} app {app}: client closed during the answer");
        }
    }
}
