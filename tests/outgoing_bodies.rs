//! Bodies of every size in every cut, both ways, and bodies that are larger than memory.

use crate::harness::{Host, World, call, encode, pattern};
use crate::origin::{Origin, Visit};
use crate::servlet::stream_through;
use crate::wire::{End, Wire, chunk, request};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::net::TcpStream;
use std::thread;

on_both_worlds![
    ten_thousand_random_bodies_decode_to_the_same_bytes,
    a_gibibyte_streams_both_ways_in_little_memory,
];

const CONNECTIONS: u64 = 5;
const BODIES_EACH: usize = 2_000;

fn ten_thousand_random_bodies_decode_to_the_same_bytes(world: World) {
    let origin = Origin::serve(send_back_cut_anew);
    let host = Host::probe(world);
    let seed: u64 = rand::random();
    thread::scope(|scope| {
        for number in 0..CONNECTIONS {
            let (host, url) = (&host, origin.url("/"));
            scope.spawn(move || {
                let mut rng = SmallRng::seed_from_u64(seed.wrapping_add(number));
                let mut wire = host.connect();
                for body in 0..BODIES_EACH {
                    let sent = send_something(&mut rng, &mut wire, &url);
                    let answer = wire.answer("POST").expect(200);
                    assert!(
                        answer.body == sent,
                        "body {body} of seed {seed} + {number}: {} bytes became {}",
                        sent.len(),
                        answer.body.len()
                    );
                }
            });
        }
    });
}

/// Every second body is the probe's own, written in pieces; the others it passes on.
fn send_something(rng: &mut SmallRng, wire: &mut Wire<TcpStream>, url: &str) -> Vec<u8> {
    let length = length(rng);
    if rng.random() {
        let chunk = rng.random_range(length.div_ceil(64).max(1)..=length.max(1));
        let announced = match rng.random() {
            true => format!("&header=content-length:{length}"),
            false => String::new(),
        };
        let call = call(url);
        let target = format!("{call}&method=POST&body-bytes={length}&chunk={chunk}{announced}");
        wire.send(&request("GET", &target, &[], b""));
        return pattern(length);
    }
    let mut body = vec![0; length];
    rng.fill(&mut body[..]);
    let (framing, framed) = framed(rng, &body);
    let target = format!("/forward?url={}", encode(url));
    send_in_pieces(rng, wire, &request("POST", &target, &[&framing], &framed));
    body
}

/// An origin that sends each body back, in a framing and in cuts of its own.
fn send_back_cut_anew(visit: &mut Visit) {
    let mut rng = SmallRng::seed_from_u64(rand::random());
    while let Some(seen) = visit.request() {
        if seen.end != End::Whole {
            return;
        }
        let (framing, framed) = framed(&mut rng, &seen.body);
        let head = format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n");
        let message = [head.as_bytes(), &framed].concat();
        send_in_pieces(&mut rng, &mut visit.wire, &message);
    }
}

/// Most bodies are small, some have up to 64 KiB.
fn length(rng: &mut SmallRng) -> usize {
    let most = match rng.random_range(0..100) {
        0..80 => 200,
        80..97 => 5_000,
        _ => 64 << 10,
    };
    rng.random_range(0..=most)
}

fn framed(rng: &mut SmallRng, body: &[u8]) -> (String, Vec<u8>) {
    if rng.random() {
        return (format!("Content-Length: {}", body.len()), body.to_vec());
    }
    let mut framed = Vec::new();
    let mut rest = body;
    while !rest.is_empty() {
        let least = body.len().div_ceil(64);
        let count = rng.random_range(least..=body.len()).min(rest.len());
        framed.extend(chunk(&rest[..count]));
        rest = &rest[count..];
    }
    framed.extend(chunk(b""));
    ("Transfer-Encoding: chunked".into(), framed)
}

fn send_in_pieces(rng: &mut SmallRng, wire: &mut Wire<TcpStream>, mut message: &[u8]) {
    for _ in 0..rng.random_range(0..8) {
        let (piece, rest) = message.split_at(rng.random_range(0..=message.len()));
        wire.send(piece);
        message = rest;
    }
    wire.send(message);
}

fn a_gibibyte_streams_both_ways_in_little_memory(world: World) {
    let origin = Origin::echoing();
    let host = Host::probe(world);
    let target = format!("/forward?url={}", encode(&origin.url("/")));
    stream_through(&host, &target, 4 << 20);
    let before = host.process.resident_bytes();
    let most = stream_through(&host, &target, 1 << 30);
    let growth = most.saturating_sub(before) / 1024;
    assert!(growth < 32 << 10, "resident memory grew by {growth} KiB");
}
