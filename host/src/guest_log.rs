//! What a guest writes to stdout and stderr, line by line to ours.
//!
//! A line that begins gets the prefix `stdout [N] :: `, where N numbers the
//! instance, as in `wasmtime serve`; `--no-logging-prefix` leaves it out. A
//! stream of ours that is closed or full ends no request: what cannot be
//! written is dropped.

use bytes::Bytes;
use std::io::{self, Write};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};

/// Bytes that a guest may write in one call.
const WRITE_BUDGET: usize = 64 * 1024;

#[derive(Clone, Copy, Debug)]
pub enum Target {
    Stdout,
    Stderr,
}

#[derive(Clone)]
pub struct GuestLog {
    target: Target,
    line: Arc<Mutex<Line>>,
}

struct Line {
    /// Empty without prefixes.
    prefix: String,
    begun: bool,
}

impl GuestLog {
    pub fn new(target: Target, instance: Option<u64>) -> Self {
        let name = match target {
            Target::Stdout => "stdout",
            Target::Stderr => "stderr",
        };
        let prefix = instance.map_or_else(String::new, |n| format!("{name} [{n}] :: "));
        let line = Line {
            prefix,
            begun: false,
        };
        Self {
            target,
            line: Arc::new(Mutex::new(line)),
        }
    }

    fn write_bytes(&self, bytes: &[u8]) {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = Vec::with_capacity(bytes.len() + line.prefix.len());
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            if !line.begun {
                text.extend_from_slice(line.prefix.as_bytes());
            }
            text.extend_from_slice(piece);
            line.begun = !piece.ends_with(b"\n");
        }
        // One call, so that lines of several instances do not mix.
        _ = match self.target {
            Target::Stdout => io::stdout().write_all(&text),
            Target::Stderr => io::stderr().write_all(&text),
        };
    }
}

impl IsTerminal for GuestLog {
    fn is_terminal(&self) -> bool {
        match self.target {
            Target::Stdout => io::stdout().is_terminal(),
            Target::Stderr => io::stderr().is_terminal(),
        }
    }
}

impl StdoutStream for GuestLog {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

impl OutputStream for GuestLog {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.write_bytes(&bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(WRITE_BUDGET)
    }
}

#[async_trait::async_trait]
impl Pollable for GuestLog {
    async fn ready(&mut self) {}
}

impl AsyncWrite for GuestLog {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.write_bytes(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
