//! What surrounds a guest: time, memory, files, environment, sockets.

use crate::Asked;
use guest_http::Response;
use std::hint::black_box;
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};
use std::{env, fs, io};

const PAGE: usize = 4096;

pub async fn sleep(asked: &Asked) -> Response {
    guest_http::sleep(asked.time("ms").unwrap_or_default()).await;
    Response::text(200, "slept\n")
}

/// Without an end where no time is given.
pub fn spin(asked: &Asked) -> Response {
    let time = asked.time("ms").unwrap_or(Duration::MAX);
    let start = Instant::now();
    while start.elapsed() < time {
        // Few looks at the clock: each would leave the guest.
        for turn in 0..100_000 {
            black_box(turn);
        }
    }
    Response::text(200, "spun\n")
}

pub fn allocate(asked: &Asked) -> Response {
    let bytes = asked.number("bytes").unwrap_or(0);
    let mut memory: Vec<u8> = Vec::new();
    if memory.try_reserve_exact(bytes).is_err() {
        return Response::text(507, format!("{bytes} bytes refused\n"));
    }
    memory.resize(bytes, 1);
    for byte in memory.iter_mut().step_by(PAGE) {
        *byte = black_box(2);
    }
    Response::text(200, format!("{}\n", black_box(memory).len()))
}

pub fn env() -> Response {
    let lines = env::vars().map(|(name, value)| format!("{name}={value}\n"));
    Response::text(200, lines.collect::<String>())
}

pub fn dir(asked: &Asked) -> Response {
    match fs::read(asked.text("path").unwrap_or_default()) {
        Ok(bytes) => Response::text(200, bytes),
        Err(error) => Response::text(200, format!("error: {error}\n")),
    }
}

/// Each line in one write, so that no other comes between.
pub fn log(asked: &Asked) -> Response {
    let line = |stream| {
        asked
            .text(stream)
            .map(|text| format!("{text}\n"))
            .unwrap_or_default()
    };
    let written = io::stdout()
        .write_all(line("stdout").as_bytes())
        .and_then(|()| io::stderr().write_all(line("stderr").as_bytes()));
    match written {
        Ok(()) => Response::text(200, "written\n"),
        Err(error) => Response::text(200, format!("error: {error}\n")),
    }
}

pub fn socket(asked: &Asked) -> Response {
    match TcpStream::connect(asked.text("addr").unwrap_or_default()) {
        Ok(_) => Response::text(200, "ok\n"),
        Err(error) => Response::text(200, format!("error: {error}\n")),
    }
}
