//! Every limit and deadline, with its default.
//!
//! Plain values: who enforces a limit is said at its field. A duration of zero
//! means "at once", never "without limit".

use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests in flight at once, counted from admission to the last byte of
    /// the answer. Enforced by `admission`. Default 5 000.
    pub requests: usize,
    /// Requests that may wait for one of those places. Default 1 000.
    pub queue: usize,
    /// How long one waits there before it is refused with 503. Default 5 s.
    pub queue_wait: Duration,
    /// Connections open at once; further ones stay in the kernel's backlog.
    /// Enforced by `server`. Default 10 000.
    pub connections: usize,
    /// Length of that backlog. Default 4 096.
    pub backlog: u32,
    /// Time for the head of a request to arrive, counted from its first byte
    /// or from the opening of the connection; 408 beyond it. Enforced by
    /// `watch`. Default 10 s.
    pub header_read: Duration,
    /// Time that a connection may be without a request. Enforced by `watch`.
    /// Default 60 s.
    pub idle: Duration,
    /// Time that a client may take none of what is written to it; it is reset
    /// beyond it, and its guest cancelled. Enforced by `watch`. Default 60 s.
    pub write_idle: Duration,
    /// Requests that one connection may carry. Enforced by `connection`.
    /// Default 100 000.
    pub requests_per_connection: u64,
    /// Bytes of a request line; 414 beyond it. Enforced by `dispatch`. Default
    /// 16 KiB.
    pub request_line_bytes: usize,
    /// Bytes of a request's body; 413 beyond it. Enforced by `received`.
    /// Default: no limit, since bodies stream in bounded memory.
    pub body_bytes: u64,
    /// Time that a guest may wait for the next bytes of a request's body; 408
    /// beyond it. Enforced by `received`. Default 30 s.
    pub body_idle: Duration,
    /// Bytes of a request's head: request line and headers. Default 64 KiB;
    /// beyond that the answer is 431.
    pub head_bytes: usize,
    /// Header lines in a request. Default 100; beyond that 431.
    pub headers: usize,
    /// Time from admission to the head of the answer; 504 beyond it. Enforced
    /// by `dispatch`. `-W timeout` sets it. Default 120 s.
    pub answer: Duration,
    /// Time that a guest may compute for one request before it answers, and
    /// between two pieces of its answer, in steps of 10 ms; 503 beyond it. Enforced by `cpu`. `--cpu-timeout` sets it. Default 5 s.
    pub computing: Duration,
    /// Time that a guest may go on after its answer is complete. Enforced by
    /// `instance`. `--background-timeout` sets it. Default 30 s.
    pub background: Duration,
    /// Bytes of each linear memory. Default 64 MiB. `-W max-memory-size`
    /// sets it.
    pub memory_bytes: usize,
    /// In-process calls that may lead from one request to the next. Enforced
    /// by `dispatch`. Default 8.
    pub depth: u8,
    /// Time that a drain waits for what was accepted. Default 30 s.
    pub drain: Duration,
    /// Time that a drain lets an idle connection linger, so that a request
    /// which is on its way is still answered. Default 1 s.
    pub linger: Duration,
    /// DNS, TCP and TLS of one outgoing connection together, and the wait for
    /// one's turn. `--connect-timeout` sets it, default 10 s; a guest's
    /// `connect-timeout` can only shorten it.
    pub connect: Duration,
    /// From an outgoing request to the head of its response.
    /// `--first-byte-timeout` sets it, default 60 s; a guest's can only
    /// shorten it.
    pub first_byte: Duration,
    /// Between two pieces of an upstream's body. `--between-bytes-timeout`
    /// sets it, default 60 s; a guest's can only shorten it.
    pub between_bytes: Duration,
    /// How long an unused upstream connection is kept. Default 60 s.
    pub upstream_idle: Duration,
    /// Unused upstream connections kept per app. Default 1 024.
    pub upstream_idle_connections: usize,
    /// Connections of one app to one destination. Default: as many as there
    /// are file descriptors.
    pub upstream_connections_per_destination: usize,
    /// Connections of one app to all destinations. Default: the same.
    pub upstream_connections: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            requests: 5_000,
            queue: 1_000,
            queue_wait: Duration::from_secs(5),
            connections: 10_000,
            backlog: 4_096,
            header_read: Duration::from_secs(10),
            idle: Duration::from_secs(60),
            write_idle: Duration::from_secs(60),
            requests_per_connection: 100_000,
            request_line_bytes: 16 << 10,
            body_bytes: u64::MAX,
            body_idle: Duration::from_secs(30),
            head_bytes: 64 << 10,
            headers: 100,
            answer: Duration::from_secs(120),
            computing: Duration::from_secs(5),
            background: Duration::from_secs(30),
            memory_bytes: 64 << 20,
            depth: 8,
            drain: Duration::from_secs(30),
            linger: Duration::from_secs(1),
            connect: Duration::from_secs(10),
            first_byte: Duration::from_secs(60),
            between_bytes: Duration::from_secs(60),
            upstream_idle: Duration::from_secs(60),
            upstream_idle_connections: 1_024,
            upstream_connections_per_destination: usize::MAX,
            upstream_connections: usize::MAX,
        }
    }
}
