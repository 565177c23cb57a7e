//! A client's socket, as hyper reads and writes it.
//!
//! TCP tells a peer that has closed from one that has only finished sending
//! (`shutdown(SHUT_WR)`) by nothing: both send FIN. The difference shows when
//! something is sent: a peer that has closed answers with RST. So when FIN
//! comes while an answer is due, the socket sends the first byte of that
//! answer, which is always the `H` of `HTTP/1.1`, and leaves it out later. A
//! peer that has closed then resets the connection within a round trip, and
//! hyper is told; one that only finished sending has lost nothing, and hyper
//! is told of the end of its input when the answer is complete.

use std::io::{ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// Where a connection is with its current request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// No request is under way.
    Idle,
    /// The body of a request is still to come.
    Receiving,
    /// The request is complete, its answer has not begun.
    Waiting,
    /// The head of the answer has been given to hyper.
    Answering,
}

/// The phase, shared by the socket and the service.
#[derive(Clone)]
pub struct PhaseCell(Arc<AtomicU8>);

impl PhaseCell {
    pub fn new() -> Self {
        Self(Arc::new(AtomicU8::new(Phase::Idle as u8)))
    }

    pub fn set(&self, phase: Phase) {
        self.0.store(phase as u8, Ordering::Release);
    }

    /// From [`Phase::Receiving`] to [`Phase::Waiting`].
    pub fn received(&self) {
        let (receiving, waiting) = (Phase::Receiving as u8, Phase::Waiting as u8);
        _ = self
            .0
            .compare_exchange(receiving, waiting, Ordering::AcqRel, Ordering::Acquire);
    }

    pub fn get(&self) -> Phase {
        match self.0.load(Ordering::Acquire) {
            0 => Phase::Idle,
            1 => Phase::Receiving,
            2 => Phase::Waiting,
            _ => Phase::Answering,
        }
    }
}

pub struct Socket {
    input: Input,
    output: OwnedWriteHalf,
    phase: PhaseCell,
    /// The first byte of the next answer has been sent.
    begun: bool,
    /// The last write did not take everything.
    blocked: bool,
}

enum Input {
    Open(OwnedReadHalf),
    /// The peer has sent FIN; resolves when it resets the connection.
    Ended(Pin<Box<dyn Future<Output = ()> + Send>>),
}

impl Socket {
    pub fn new(stream: TcpStream, phase: PhaseCell) -> Self {
        let (input, output) = stream.into_split();
        Self {
            input: Input::Open(input),
            output,
            phase,
            begun: false,
            blocked: false,
        }
    }

    /// What to tell hyper after FIN.
    fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let Input::Ended(reset) = &mut self.input else {
            return Poll::Pending;
        };
        if reset.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(ErrorKind::ConnectionReset.into()));
        }
        match self.phase.get() {
            // Nothing is due: the end of the input is the end.
            Phase::Idle if !self.blocked => Poll::Ready(Ok(())),
            // The request is not complete and never will be.
            Phase::Receiving => Poll::Ready(Ok(())),
            Phase::Waiting if !self.begun => {
                match self.output.try_write(b"H") {
                    Ok(1) => self.begun = true,
                    // No room: earlier answers are on their way, and their
                    // writes will meet the reset.
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Poll::Ready(Err(error)),
                }
                Poll::Pending
            }
            Phase::Idle | Phase::Waiting | Phase::Answering => Poll::Pending,
        }
    }

    fn wrote(
        &mut self,
        cx: &mut Context<'_>,
        result: Poll<Result<usize>>,
        already: usize,
    ) -> Poll<Result<usize>> {
        let blocked = std::mem::replace(&mut self.blocked, result.is_pending());
        if blocked && matches!(self.input, Input::Ended(_)) {
            // What is told of the end of the input depends on this.
            cx.waker().wake_by_ref();
        }
        let written = ready!(result)?;
        self.begun = false;
        Poll::Ready(Ok(written + already))
    }
}

/// Resolves when the peer has reset the connection.
async fn reset(input: OwnedReadHalf) {
    // An error here means that the runtime shuts down.
    _ = input.ready(Interest::ERROR).await;
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let this = &mut *self;
        if let Input::Open(input) = &mut this.input {
            let before = buffer.filled().len();
            ready!(Pin::new(input).poll_read(cx, buffer))?;
            if buffer.filled().len() > before {
                return Poll::Ready(Ok(()));
            }
            let ended = Input::Ended(Box::pin(std::future::pending()));
            if let Input::Open(input) = std::mem::replace(&mut this.input, ended) {
                this.input = Input::Ended(Box::pin(reset(input)));
            }
        }
        this.poll_ended(cx)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        let this = &mut *self;
        let already = usize::from(this.begun && !bytes.is_empty());
        let rest = &bytes[already..];
        if already > 0 && rest.is_empty() {
            return this.wrote(cx, Poll::Ready(Ok(0)), already);
        }
        let result = Pin::new(&mut this.output).poll_write(cx, rest);
        this.wrote(cx, result, already)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        if self.begun {
            let first = slices.iter().find(|slice| !slice.is_empty());
            return self.poll_write(cx, first.map_or(&[], |slice| slice));
        }
        let this = &mut *self;
        let result = Pin::new(&mut this.output).poll_write_vectored(cx, slices);
        this.wrote(cx, result, 0)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.output).poll_shutdown(cx)
    }
}
