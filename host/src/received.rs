//! The body of a request on its way from the client to the guest.
//!
//! It streams in bounded memory, so it has no size limit by default; what it
//! must not do is stop. When it breaks a limit, the guest sees an error in it,
//! and [`Trouble`] tells `dispatch`, which answers if the guest has not.

use crate::limits::Limits;
use crate::outcome::{Failure, Kind};
use crate::socket::Progress;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep};
use wasmtime_wasi_http::Error;

/// How late a timer may be noticed by somebody who waits for it.
const UNATTENDED: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug)]
pub struct BodyLimits {
    /// Bytes.
    most: u64,
    /// Counted only while the guest waits for bytes.
    idle: Duration,
}

impl BodyLimits {
    pub fn new(limits: &Limits) -> Self {
        Self {
            most: limits.body_bytes,
            idle: limits.body_idle,
        }
    }
}

/// What is wrong with a request's body.
#[derive(Default)]
pub struct Trouble {
    failure: OnceLock<Failure>,
    known: Notify,
}

impl Trouble {
    /// Waits until there is some.
    pub async fn failure(&self) -> Failure {
        let mut known = std::pin::pin!(self.known.notified());
        loop {
            known.as_mut().enable();
            if let Some(failure) = self.failure.get() {
                return failure.clone();
            }
            known.as_mut().await;
            known.set(self.known.notified());
        }
    }

    fn set(&self, failure: Failure) {
        _ = self.failure.set(failure);
        self.known.notify_waiters();
    }
}

pub struct Received {
    body: Incoming,
    left: u64,
    limits: BodyLimits,
    /// Made only when a frame has to be waited for.
    timer: Option<Pin<Box<Sleep>>>,
    /// Of an HTTP/1 connection, which cares for its end.
    progress: Option<Progress>,
    trouble: Arc<Trouble>,
}

impl Received {
    pub fn new(
        body: Incoming,
        limits: BodyLimits,
        progress: Option<Progress>,
        trouble: Arc<Trouble>,
    ) -> Self {
        let mut received = Self {
            body,
            left: limits.most,
            limits,
            timer: None,
            progress,
            trouble,
        };
        if received.body.size_hint().lower() > limits.most {
            // It says so itself; nothing needs to be read.
            received.too_large();
        }
        received
    }

    fn too_large(&mut self) -> Error {
        let most = self.limits.most;
        self.left = 0;
        self.trouble.set(Failure::new(
            Kind::BodyTooLarge,
            format_args!("at most {most} bytes are taken"),
        ));
        Error::HttpRequestBodySize(Some(most))
    }

    /// Bad chunks, or an end before the end.
    fn broken(&self, error: hyper::Error) -> Error {
        let cause = std::error::Error::source(&error);
        let cause = cause.map_or_else(|| error.to_string(), ToString::to_string);
        self.trouble.set(Failure::new(
            Kind::BadRequest,
            format_args!("its body is broken: {cause}"),
        ));
        error.into()
    }

    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<Error> {
        let idle = self.limits.idle;
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(idle)));
        if Instant::now() > timer.deadline() + UNATTENDED {
            // Nobody waited when the time was up: the guest did not read.
            timer.as_mut().reset(Instant::now() + idle);
        }
        std::task::ready!(timer.as_mut().poll(cx));
        self.trouble.set(Failure::new(
            Kind::BodyTimeout,
            format_args!("nothing came for {idle:?}"),
        ));
        Poll::Ready(Error::ConnectionReadTimeout)
    }
}

impl Body for Received {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
            return self.poll_late(cx).map(|error| Some(Err(error)));
        };
        self.timer = None;
        if frame.is_none() || self.body.is_end_stream() {
            self.progress
                .iter()
                .for_each(|progress| progress.received(true));
        }
        Poll::Ready(frame.map(|frame| {
            let frame = frame.map_err(|error| self.broken(error))?;
            let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
            match self.left.checked_sub(bytes) {
                Some(left) => self.left = left,
                None => return Err(self.too_large()),
            }
            Ok(frame)
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
