//! A client's socket, and the question whether the client is still there.
//!
//! TCP tells a peer that has closed from one that has only finished sending
//! (`shutdown(SHUT_WR)`) by nothing: both send FIN. The difference shows when
//! something is sent, which a closed peer answers with RST. So when FIN comes
//! while an answer is due, one byte of that answer is sent ahead:
//!
//! - before its head the `H` of `HTTP/1.1`, which hyper's own write then leaves
//!   out;
//! - within a chunked body a `0`, which becomes a leading zero of the next
//!   chunk's size (`chunk-size = 1*HEXDIG`, RFC 9112 section 7.1).
//!
//! A peer that has closed resets the connection within a round trip, and
//! [`Watch::gone`] resolves; one that only finished sending has lost nothing.
//! hyper is told to allow half-closed connections, so it reads only what it
//! needs: the end of the input reaches it where a body or a head is missing.

use futures::task::AtomicWaker;
use std::future::poll_fn;
use std::io::{IoSlice, Result};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

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
struct Shared {
    /// `None` once the peer has sent FIN.
    input: Mutex<Option<OwnedReadHalf>>,
    due: AtomicU8,
    /// The current request has been read to its end.
    received: AtomicBool,
    /// The first byte of the next answer has been sent ahead.
    ahead: AtomicBool,
    /// The last write did not take everything.
    blocked: AtomicBool,
    watch: AtomicWaker,
}

impl Shared {
    fn input(&self) -> MutexGuard<'_, Option<OwnedReadHalf>> {
        self.input.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn due(&self) -> Due {
        match self.due.load(Ordering::Acquire) {
            0 => Due::Nothing,
            1 => Due::Head,
            2 => Due::Chunk,
            _ => Due::Bytes,
        }
    }

    fn answering(&self) -> bool {
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
    }

    pub fn received(&self, complete: bool) {
        self.0.received.store(complete, Ordering::Release);
        self.0.watch.wake();
    }

    pub fn is_idle(&self) -> bool {
        self.0.due() == Due::Nothing
    }
}

/// Splits a stream into what hyper reads and writes, what the service tells,
/// and what watches the client.
pub fn split(stream: TcpStream) -> (Socket, Progress, Watch) {
    let (input, output) = stream.into_split();
    let shared = Arc::new(Shared {
        input: Mutex::new(Some(input)),
        due: AtomicU8::new(Due::Nothing as u8),
        received: AtomicBool::new(false),
        ahead: AtomicBool::new(false),
        blocked: AtomicBool::new(false),
        watch: AtomicWaker::new(),
    });
    let socket = Socket {
        output,
        shared: Arc::clone(&shared),
    };
    (socket, Progress(Arc::clone(&shared)), Watch(shared))
}

pub struct Watch(Arc<Shared>);

impl Watch {
    /// Resolves when the client of a complete request has closed or reset the
    /// connection. Has to be polled by the task that polls the socket, after
    /// it.
    pub async fn gone(&self) {
        let Some(input) = poll_fn(|cx| self.poll_finished(cx)).await else {
            return;
        };
        let mut reset = std::pin::pin!(input.ready(Interest::ERROR));
        let mut asked = None;
        poll_fn(|cx| {
            // An error of `ready` itself means that the runtime shuts down.
            if reset.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            self.0.watch.register(cx.waker());
            let due = self.0.due();
            if self.0.answering() && asked != Some(due) && self.ask(&input, due) {
                asked = Some(due);
            }
            Poll::Pending
        })
        .await;
    }

    /// Waits for FIN while an answer is due; `None` is a reset.
    fn poll_finished(&self, cx: &mut Context<'_>) -> Poll<Option<OwnedReadHalf>> {
        self.0.watch.register(cx.waker());
        if !self.0.answering() {
            return Poll::Pending;
        }
        let mut input = self.0.input();
        let Some(half) = input.as_mut() else {
            return Poll::Pending;
        };
        let mut byte = [0];
        match ready!(half.poll_peek(cx, &mut ReadBuf::new(&mut byte))) {
            Ok(0) => Poll::Ready(input.take()),
            // The next request. What comes behind it shows when it is read.
            Ok(_) => Poll::Pending,
            Err(_) => Poll::Ready(None),
        }
    }

    /// Sends one byte ahead, where there is one. False where it has to be
    /// tried again.
    fn ask(&self, input: &OwnedReadHalf, due: Due) -> bool {
        if self.0.blocked.load(Ordering::Acquire) {
            // What is on its way will meet the reset as well.
            return false;
        }
        match due {
            Due::Head => {
                let sent = input.as_ref().try_write(b"H").is_ok_and(|n| n == 1);
                self.0.ahead.store(sent, Ordering::Release);
                sent
            }
            Due::Chunk => input.as_ref().try_write(b"0").is_ok_and(|n| n == 1),
            Due::Bytes | Due::Nothing => true,
        }
    }
}

/// What hyper reads and writes.
pub struct Socket {
    output: OwnedWriteHalf,
    shared: Arc<Shared>,
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        match self.shared.input().as_mut() {
            Some(input) => Pin::new(input).poll_read(cx, buffer),
            None => Poll::Ready(Ok(())),
        }
    }
}

impl Socket {
    fn wrote(&self, result: Poll<Result<usize>>, ahead: usize) -> Poll<Result<usize>> {
        let blocked = result.is_pending();
        if self.shared.blocked.swap(blocked, Ordering::AcqRel) && !blocked {
            self.shared.watch.wake();
        }
        let written = ready!(result)?;
        self.shared.ahead.store(false, Ordering::Release);
        Poll::Ready(Ok(written + ahead))
    }
}

impl AsyncWrite for Socket {
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
        let result = Pin::new(&mut self.output).poll_write(cx, rest);
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
        let result = Pin::new(&mut self.output).poll_write_vectored(cx, slices);
        self.wrote(result, 0)
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
