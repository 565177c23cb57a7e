//! The end of a host: what was accepted is answered, then the process exits with 0.

use crate::harness::{Host, World, call, encode};
use crate::origin::{Origin, answer};
use crate::wire::{End, request};
use rustix::process::Signal;
use std::time::Instant;

on_both_worlds![
    a_request_in_flight_is_answered_after_sigterm,
    an_interrupt_drains_too,
    a_body_under_way_ends_whole,
    a_connection_whose_head_has_left_answers_one_more,
    an_idle_connection_is_closed,
    a_second_signal_exits_at_once,
    the_drain_timeout_ends_what_does_not_end,
    background_work_is_awaited,
    background_work_ends_at_its_deadline,
    the_shutdown_address_drains,
];

fn drains_with(world: World, signal: Signal) {
    let origin = Origin::answering_when_released(&answer("200 OK", &[], "late"));
    let mut host = Host::probe(world);
    let mut client = host.connect();
    client.send(&request("GET", "/hello", &[], b""));
    assert_ne!(
        client.answer("GET").expect(200).head.field("connection"),
        Some("close")
    );
    client.send(&request("GET", &call(&origin.url("/")), &[], b""));
    origin.wait(|record| record.requests.len() == 1);
    host.process.signal(signal);
    host.wait_until_it_refuses();
    origin.release();
    let answer = client.answer("GET").expect(200);
    assert_eq!(
        (answer.text().as_str(), answer.head.field("connection")),
        ("late", Some("close"))
    );
    assert!(client.at_end());
    assert_eq!(host.process.exit_code(), 0);
}

fn a_request_in_flight_is_answered_after_sigterm(world: World) {
    drains_with(world, Signal::TERM);
}

fn an_interrupt_drains_too(world: World) {
    drains_with(world, Signal::INT);
}

fn a_body_under_way_ends_whole(world: World) {
    let mut host = Host::probe(world);
    let mut client = host.send("GET", "/stream?bytes=2000&chunk=100&every=50", &[], b"");
    let head = client.head().expect("a head");
    host.process.signal(Signal::TERM);
    let mut count = 0;
    let (end, _) = client.body(head.answer_framing("GET"), &mut |bytes| {
        count += bytes.len()
    });
    assert_eq!((count, end), (2000, End::Whole));
    assert_eq!(host.process.exit_code(), 0);
}

fn an_idle_connection_is_closed(world: World) {
    let mut host = Host::probe(world);
    let mut used = host.connect();
    used.send(&request("GET", "/hello", &[], b""));
    used.answer("GET").expect(200);
    let mut fresh = host.connect();
    host.get("/hello").expect(200);
    host.process.signal(Signal::TERM);
    assert!(used.at_end() && fresh.at_end());
    assert_eq!(host.process.exit_code(), 0);
}

fn a_second_signal_exits_at_once(world: World) {
    let mut host = Host::guest(world, "probe", &["--drain-timeout", "600"]);
    let mut client = host.send("GET", "/never", &[], b"");
    host.get("/hello").expect(200);
    host.process.signal(Signal::TERM);
    host.wait_until_it_refuses();
    host.process.signal(Signal::TERM);
    host.process.exit_code();
    assert!(
        client
            .try_answer("GET")
            .is_none_or(|answer| answer.status() >= 500)
    );
}

fn the_drain_timeout_ends_what_does_not_end(world: World) {
    let mut host = Host::guest(world, "probe", &["--drain-timeout", "1"]);
    let mut client = host.send("GET", "/never", &[], b"");
    host.get("/hello").expect(200);
    let begun = Instant::now();
    host.process.signal(Signal::TERM);
    assert!(
        client
            .try_answer("GET")
            .is_none_or(|answer| answer.status() >= 500)
    );
    assert_eq!(host.process.exit_code(), 0);
    assert!(
        begun.elapsed().as_millis() >= 900,
        "it did not wait for its drain timeout"
    );
}

fn background_work_is_awaited(world: World) {
    let origin = Origin::answering(&answer("200 OK", &[], ""));
    let mut host = Host::probe(world);
    let target = format!("/background?ms=1500&url={}", encode(&origin.url("/done")));
    host.get(&target).expect(200);
    assert_eq!(
        origin.record().requests.len(),
        0,
        "the work was done before the answer"
    );
    host.process.signal(Signal::TERM);
    assert_eq!(host.process.exit_code(), 0);
    let record = origin.record();
    assert_eq!(record.requests.len(), 1, "the work was cut off");
    assert_eq!(record.requests[0].head.start, "GET /done HTTP/1.1");
}

fn background_work_ends_at_its_deadline(world: World) {
    let origin = Origin::answering(&answer("200 OK", &[], ""));
    let mut host = Host::guest(world, "probe", &["--background-timeout", "200ms"]);
    let target = format!("/background?ms=600000&url={}", encode(&origin.url("/done")));
    host.get(&target).expect(200);
    host.log().wait_for(&["work after an answer was ended"]);
    host.process.signal(Signal::TERM);
    assert_eq!(host.process.exit_code(), 0);
    assert_eq!(origin.record().requests.len(), 0);
}

fn the_shutdown_address_drains(world: World) {
    let origin = Origin::answering_when_released(&answer("200 OK", &[], "late"));
    let mut host = Host::guest(world, "probe", &["--shutdown-addr", "127.0.0.1:0"]);
    let line = host.log().wait_for(&["tcp://"]);
    let addr = line
        .split("tcp://")
        .nth(1)
        .unwrap()
        .trim_end_matches('/')
        .parse()
        .unwrap();
    let mut client = host.send("GET", &call(&origin.url("/")), &[], b"");
    origin.wait(|record| record.requests.len() == 1);
    let _knock = std::net::TcpStream::connect_timeout(&addr, crate::harness::PATIENCE).unwrap();
    host.wait_until_it_refuses();
    origin.release();
    assert_eq!(client.answer("GET").expect(200).text(), "late");
    assert_eq!(host.process.exit_code(), 0);
}

/// 1. The head of an answer has left, without a word of an end.
/// 2. The host drains; the answer ends whole.
/// 3. The client knows nothing of that, and asks once more; that answer says it.
fn a_connection_whose_head_has_left_answers_one_more(world: World) {
    let mut host = Host::probe(world);
    let mut client = host.send("GET", "/events?count=5&every=100", &[], b"");
    let head = client.head().expect("a head");
    assert_eq!(head.field("connection"), None);
    host.process.signal(Signal::TERM);
    let framing = head.answer_framing("GET");
    let mut bytes = 0;
    let (end, _) = client.body(framing, &mut |piece| bytes += piece.len());
    assert_eq!((bytes, end), (5 * "data: 0\n\n".len(), End::Whole));
    client.send(&request("GET", "/hello", &[], b""));
    let answer = client.answer("GET").expect(200);
    assert_eq!(answer.head.field("connection"), Some("close"));
    assert_eq!(host.process.exit_code(), 0);
}
