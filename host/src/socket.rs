//! A client's socket, as hyper reads and writes it, and what its connection
//! knows of its progress. The questions whether the client is still there and
//! whether it takes too long are for `watch`, which looks at the same state.
//!
//! hyper is told to allow half-closed connections, so it reads only what it
//! needs: the end of the input reaches it where a body or a head is missing.

use futures::task::AtomicWaker;
use std::io::{IoSlice, Result};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::Notify;

/// What the client is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Due {
    /// Nothing: no request is under way.
    Nothing,
    /// The head of an answer.
    Head,
    /// The next chunk of a body, or its end.
    Chunk,
    /// More of a body that has no chunks.
    Bytes,
}

/// Shared by the socket, the service and the watch, all of one connection.
pub struct Shared {
    due: AtomicU8,
    /// The current request has been read to its end.
    pub received: AtomicBool,
    /// Requests so far.
    pub requests: AtomicU64,
    /// Some of the next request's head has come.
    pub begun: AtomicBool,
    /// The first byte of the next answer has been sent ahead.
    pub ahead: AtomicBool,
    /// The last write did not take everything.
    pub blocked: AtomicBool,
    /// Bytes written.
    pub written: AtomicU64,
    pub watch: AtomicWaker,
    /// Told when nothing is due any more.
    idle: Notify,
}

impl Shared {
    pub fn due(&self) -> Due {
        match self.due.load(Ordering::Acquire) {
            0 => Due::Nothing,
            1 => Due::Head,
            2 => Due::Chunk,
            _ => Due::Bytes,
        }
    }

    pub fn answering(&self) -> bool {
        self.due() != Due::Nothing && self.received.load(Ordering::Acquire)
    }
}

/// A connection's progress, as the service reports it.
#[derive(Clone)]
pub struct Progress(Arc<Shared>);

impl Progress {
    pub fn due(&self, due: Due) {
        self.0.due.store(due as u8, Ordering::Release);
        self.0.watch.wake();
        if due == Due::Nothing {
            self.0.idle.notify_waiters();
        }
    }

    /// Waits until no request is under way.
    pub async fn idle(&self) {
        let mut idle = std::pin::pin!(self.0.idle.notified());
        idle.as_mut().enable();
        if !self.is_idle() {
            idle.await;
        }
    }

    pub fn received(&self, complete: bool) {
        self.0.received.store(complete, Ordering::Release);
        self.0.watch.wake();
    }

    /// The head of a request has been read; returns how many there were.
    pub fn requested(&self) -> u64 {
        self.0.begun.store(false, Ordering::Release);
        self.0.requests.fetch_add(1, Ordering::AcqRel) + 1
    }

    pub fn is_idle(&self) -> bool {
        self.0.due() == Due::Nothing
    }
}

/// A plain connection. Its input can be taken away once the peer has sent FIN.
pub struct Plain {
    input: Input,
    output: OwnedWriteHalf,
}

/// `None` once the peer has sent FIN.
#[derive(Clone)]
pub struct Input(Arc<Mutex<Option<OwnedReadHalf>>>);

impl Input {
    pub fn lock(&self) -> MutexGuard<'_, Option<OwnedReadHalf>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Plain {
    pub fn new(stream: TcpStream) -> (Self, Input) {
        let (input, output) = stream.into_split();
        let input = Input(Arc::new(Mutex::new(Some(input))));
        let plain = Self {
            input: input.clone(),
            output,
        };
        (plain, input)
    }
}

impl AsyncRead for Plain {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        match &mut *self.input.lock() {
            Some(input) => Pin::new(input).poll_read(cx, buffer),
            None => Poll::Ready(Ok(())),
        }
    }
}

impl AsyncWrite for Plain {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        Pin::new(&mut self.output).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        Pin::new(&mut self.output).poll_write_vectored(cx, slices)
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

/// What hyper reads and writes; notes how that goes.
pub struct Socket<I> {
    io: I,
    shared: Arc<Shared>,
}

impl<I> Socket<I> {
    /// The socket, what the service tells of its progress, and what `watch`
    /// looks at.
    pub fn new(io: I) -> (Self, Progress, Arc<Shared>) {
        let shared = Arc::new(Shared {
            due: AtomicU8::new(Due::Nothing as u8),
            received: AtomicBool::new(false),
            requests: AtomicU64::new(0),
            begun: AtomicBool::new(false),
            ahead: AtomicBool::new(false),
            blocked: AtomicBool::new(false),
            written: AtomicU64::new(0),
            watch: AtomicWaker::new(),
            idle: Notify::new(),
        });
        let socket = Self {
            io,
            shared: Arc::clone(&shared),
        };
        (socket, Progress(Arc::clone(&shared)), shared)
    }

    fn wrote(&self, result: Poll<Result<usize>>, ahead: usize) -> Poll<Result<usize>> {
        self.block(result.is_pending());
        let written = ready!(result)? + ahead;
        self.shared.ahead.store(false, Ordering::Release);
        self.shared
            .written
            .fetch_add(written as u64, Ordering::AcqRel);
        Poll::Ready(Ok(written))
    }

    fn block(&self, blocked: bool) {
        if self.shared.blocked.swap(blocked, Ordering::AcqRel) && !blocked {
            self.shared.watch.wake();
        }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Socket<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buffer))?;
        if buffer.filled().len() > before && self.shared.due() == Due::Nothing {
            self.shared.begun.store(true, Ordering::Release);
        }
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Socket<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        let ahead = usize::from(self.shared.ahead.load(Ordering::Acquire)).min(bytes.len());
        let rest = &bytes[ahead..];
        if ahead > 0 && rest.is_empty() {
            return self.wrote(Poll::Ready(Ok(0)), ahead);
        }
        let result = Pin::new(&mut self.io).poll_write(cx, rest);
        self.wrote(result, ahead)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        if self.shared.ahead.load(Ordering::Acquire) {
            let first = slices.iter().find(|slice| !slice.is_empty());
            return self.poll_write(cx, first.map_or(&[], |slice| slice));
        }
        let result = Pin::new(&mut self.io).poll_write_vectored(cx, slices);
        self.wrote(result, 0)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        // TLS takes more than it can pass on, and says so here.
        let result = Pin::new(&mut self.io).poll_flush(cx);
        self.block(result.is_pending());
        result
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
