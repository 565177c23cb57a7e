//! The clients: raw sockets, HTTP/1.1 with kept connections, every answer compared with the right
//! one. All of them run on the one thread of the bench.

use anyhow::{Context as _, bail, ensure};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// How much longer than planned a round may take. Only a hang takes that long.
const GRACE: Duration = Duration::from_secs(20);
/// Digits of `x-number`.
const DIGITS: usize = 12;
/// Where they begin, counted from the end of a request.
const NUMBER: usize = DIGITS + "\r\n\r\n".len();

/// What is asked for, and the right answer.
#[derive(Clone, Copy)]
pub struct Target {
    pub path: &'static str,
    pub answer: Answer,
}

#[derive(Clone, Copy)]
pub enum Answer {
    /// Status 200 and this body.
    Body(&'static [u8]),
    /// Status 200 and the number of this very request, from the upstream.
    Number,
    /// This status, and any body.
    Status(u16),
}

/// What a closed loop of clients got.
pub struct Round {
    pub per_second: f64,
    /// 99 of 100 requests took no longer.
    pub percentile_99: Duration,
}

/// Each of `clients` asks again as soon as it has an answer, for `time`, after a tenth of it that
/// does not count: a server that was idle has to get its instances back.
///
/// # Errors
/// A wrong answer, a failed one, or one that does not come.
pub async fn closed_loop(
    addr: SocketAddr,
    target: Target,
    clients: usize,
    time: Duration,
) -> anyhow::Result<Round> {
    let round = async {
        let mut tasks = JoinSet::new();
        let waiting = connect_and_ask(addr, target, clients).await?;
        let begin = Instant::now() + time / 10;
        let end = begin + time;
        for mut client in waiting {
            tasks.spawn(async move {
                let mut latencies = Vec::new();
                let mut start = Instant::now();
                while start < end {
                    client.ask().await?;
                    let now = Instant::now();
                    if start >= begin {
                        latencies.push(now - start);
                    }
                    start = now;
                }
                anyhow::Ok(latencies)
            });
        }
        let mut latencies = Vec::new();
        while let Some(done) = tasks.join_next().await {
            latencies.extend(done??);
        }
        latencies.sort_unstable();
        let rank = (latencies.len() * 99).div_ceil(100).saturating_sub(1);
        anyhow::Ok(Round {
            // Counted by their beginnings, so that as many are missing at one end as are too many
            // at the other.
            per_second: latencies.len() as f64 / time.as_secs_f64(),
            percentile_99: *latencies.get(rank).context("no answer at all")?,
        })
    };
    timeout(time + GRACE, round)
        .await
        .context("an answer does not come")?
}

/// Clients that have asked once each, so that their connections are in use.
pub async fn connect_and_ask(
    addr: SocketAddr,
    target: Target,
    clients: usize,
) -> anyhow::Result<Vec<Client>> {
    let mut connected = Vec::new();
    for _ in 0..clients {
        let mut client = Client::connect(addr, target).await?;
        timeout(GRACE, client.ask())
            .await
            .context("the first answer does not come")??;
        connected.push(client);
    }
    Ok(connected)
}

/// All of `clients` connect and ask at once, once. The longest time from the common start to the
/// end of an answer.
///
/// # Errors
/// One of them failed.
pub async fn burst(addr: SocketAddr, target: Target, clients: usize) -> anyhow::Result<Duration> {
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..clients {
        tasks.spawn(async move {
            let exchange = async { Client::connect(addr, target).await?.ask().await };
            timeout(GRACE, exchange)
                .await
                .context("an answer does not come")??;
            anyhow::Ok(start.elapsed())
        });
    }
    let (mut longest, mut failed, mut first) = (Duration::ZERO, 0, None);
    while let Some(done) = tasks.join_next().await {
        match done? {
            Ok(time) => longest = longest.max(time),
            Err(error) => {
                failed += 1;
                first.get_or_insert(error);
            }
        }
    }
    match first {
        None => Ok(longest),
        Some(error) => Err(error.context(format!("{failed} of {clients} failed, the first"))),
    }
}

/// One connection.
pub struct Client {
    socket: TcpStream,
    answer: Answer,
    request: Vec<u8>,
    received: Vec<u8>,
}

impl Client {
    pub async fn connect(addr: SocketAddr, target: Target) -> anyhow::Result<Client> {
        let socket = TcpStream::connect(addr).await.context("cannot connect")?;
        socket.set_nodelay(true)?;
        let request = format!(
            "GET {} HTTP/1.1\r\nhost: {addr}\r\nx-number: {:DIGITS$}\r\n\r\n",
            target.path, 0
        );
        Ok(Client {
            socket,
            answer: target.answer,
            request: request.into_bytes(),
            received: Vec::with_capacity(4096),
        })
    }

    /// Sends a request and reads the whole answer.
    pub async fn ask(&mut self) -> anyhow::Result<()> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = format!("{:0DIGITS$}", LAST.fetch_add(1, Ordering::Relaxed));
        let at = self.request.len() - NUMBER;
        self.request[at..][..DIGITS].copy_from_slice(number.as_bytes());
        self.socket.write_all(&self.request).await?;

        self.received.clear();
        let (status, body) = loop {
            let count = self.socket.read_buf(&mut self.received).await?;
            ensure!(count > 0, "the connection ends within an answer");
            if let Some(whole) = parse(&self.received)? {
                break whole;
            }
        };
        let is_right = match self.answer {
            Answer::Body(right) => status == 200 && body == right,
            Answer::Number => {
                let text = body.strip_prefix(b"answer ");
                let text = text.and_then(|text| text.strip_suffix(b"\n"));
                status == 200 && text == Some(number.as_bytes())
            }
            Answer::Status(right) => status == right,
        };
        ensure!(
            is_right,
            "a wrong answer to number {number}: status {status}, {}",
            String::from_utf8_lossy(&body)
        );
        Ok(())
    }
}

/// Status and body, as soon as all of the answer is there.
fn parse(received: &[u8]) -> anyhow::Result<Option<(u16, Vec<u8>)>> {
    let Some(end) = received.windows(4).position(|bytes| bytes == b"\r\n\r\n") else {
        return Ok(None);
    };
    let head = str::from_utf8(&received[..end])?;
    let rest = &received[end + 4..];
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1));
    let status = status.context("no status line")?.parse()?;
    for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
        if name.eq_ignore_ascii_case("content-length") {
            let length = value.parse()?;
            ensure!(rest.len() <= length, "more bytes than the answer has");
            return Ok((rest.len() == length).then(|| (status, rest.to_vec())));
        }
        if name.eq_ignore_ascii_case("transfer-encoding") {
            return Ok(join_chunks(rest)?.map(|body| (status, body)));
        }
    }
    bail!("an answer of unknown length: {head}")
}

/// The body, once its last chunk is there. None of the servers here sends trailers.
fn join_chunks(mut rest: &[u8]) -> anyhow::Result<Option<Vec<u8>>> {
    let mut body = Vec::new();
    loop {
        let Some(end) = rest.windows(2).position(|bytes| bytes == b"\r\n") else {
            return Ok(None);
        };
        let length = usize::from_str_radix(str::from_utf8(&rest[..end])?, 16)?;
        let Some(chunk) = rest.get(end + 2..end + 2 + length + 2) else {
            return Ok(None);
        };
        body.extend_from_slice(&chunk[..length]);
        rest = &rest[end + 2 + length + 2..];
        if length == 0 {
            ensure!(rest.is_empty(), "more bytes than the answer has");
            return Ok(Some(body));
        }
    }
}
