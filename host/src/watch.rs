//! Whether a client is still there, and whether it takes too long.
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

use crate::limits::Limits;
use crate::socket::{Due, Input, Shared};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;
use tokio::time::{Instant, Sleep};

/// Of one connection.
pub struct Watch {
    shared: Arc<Shared>,
    /// Of a plain connection. Under TLS hyper reads on while an answer is due,
    /// and takes the end of the input for the end of the client.
    input: Option<Input>,
}

impl Watch {
    pub fn new(shared: Arc<Shared>, input: Option<Input>) -> Self {
        Self { shared, input }
    }

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
            self.shared.watch.register(cx.waker());
            let due = self.shared.due();
            if self.shared.answering() && asked != Some(due) && self.ask(&input, due) {
                asked = Some(due);
            }
            Poll::Pending
        })
        .await;
    }

    /// Waits for FIN while an answer is due; `None` is a reset.
    fn poll_finished(&self, cx: &mut Context<'_>) -> Poll<Option<OwnedReadHalf>> {
        self.shared.watch.register(cx.waker());
        let Some(input) = self.input.as_ref().filter(|_| self.shared.answering()) else {
            return Poll::Pending;
        };
        let mut input = input.lock();
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
        if self.shared.blocked.load(Ordering::Acquire) {
            // What is on its way will meet the reset as well.
            return false;
        }
        match due {
            Due::Head => {
                let sent = input.as_ref().try_write(b"H").is_ok_and(|n| n == 1);
                self.shared.ahead.store(sent, Ordering::Release);
                sent
            }
            Due::Chunk => input.as_ref().try_write(b"0").is_ok_and(|n| n == 1),
            Due::Bytes | Due::Nothing => true,
        }
    }

    /// Resolves when the client has been waited for too long. Has to be polled
    /// by the task that polls the socket, after it.
    pub async fn late(&self, patience: Patience) -> Late {
        let mut waiting = None;
        let mut timer = std::pin::pin!(tokio::time::sleep(patience.head));
        poll_fn(|cx| {
            let now = self.waiting();
            let (late, time) = match now {
                Waiting::ForUs => return Poll::Pending,
                Waiting::Head(0) => (Late::Head, patience.head),
                Waiting::Head(_) if self.shared.begun.load(Ordering::Acquire) => {
                    (Late::Head, patience.head)
                }
                Waiting::Head(_) => (Late::Idle, patience.idle),
                Waiting::Write(_) => (Late::Write, patience.write),
            };
            if waiting != Some((now, late)) {
                waiting = Some((now, late));
                set(timer.as_mut(), time);
            }
            timer.as_mut().poll(cx).map(|()| late)
        })
        .await
    }

    fn waiting(&self) -> Waiting {
        if self.shared.blocked.load(Ordering::Acquire) {
            Waiting::Write(self.shared.written.load(Ordering::Acquire))
        } else if self.shared.due() == Due::Nothing {
            Waiting::Head(self.shared.requests.load(Ordering::Acquire))
        } else {
            Waiting::ForUs
        }
    }

    /// Says so to a client that may be reading, and ends the connection hard
    /// where it is not.
    pub fn part(&self, late: Late) {
        let Some(input) = &self.input else { return };
        let input = input.lock();
        let Some(input) = input.as_ref() else { return };
        // Errors mean that the client has gone.
        match late {
            Late::Head => say_too_late(input.as_ref()),
            Late::Write => _ = input.as_ref().set_zero_linger(),
            Late::Idle => {}
        }
    }
}

/// To a client whose request has not come.
pub fn say_too_late(stream: &TcpStream) {
    const TOO_LATE: &[u8] = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\n\
        content-type: text/plain\r\ncontent-length: 45\r\n\r\n\
        The head of the request did not come in time\n";
    _ = stream.try_write(TOO_LATE);
}

/// How long a client may take.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    head: Duration,
    idle: Duration,
    write: Duration,
}

impl Patience {
    pub fn new(limits: &Limits) -> Self {
        Self {
            head: limits.header_read,
            idle: limits.idle,
            write: limits.write_idle,
        }
    }
}

/// What a client was too late with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// The head of a request that it began, or the first one.
    Head,
    /// The next request.
    Idle,
    /// Reading what is written to it.
    Write,
}

/// Who waits for whom, and since when: a change of the number is progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    ForUs,
    /// For the head after so many requests.
    Head(u64),
    /// After so many bytes.
    Write(u64),
}

fn set(timer: Pin<&mut Sleep>, time: Duration) {
    // A time too far away to be told is never.
    let now = Instant::now();
    timer.reset(now.checked_add(time).unwrap_or(now + FAR_AWAY));
}

const FAR_AWAY: Duration = Duration::from_secs(86_400 * 365);
