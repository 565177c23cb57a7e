//! The route: what the Camel article's service does, for three hundred clients at once.

use crate::harness::{Host, World};
use crate::origin::{Origin, answer};
use crate::wire::request;
use std::collections::HashSet;
use std::thread;
use std::time::{Duration, Instant};

on_both_worlds![
    the_route_forwards_and_logs_what_passes,
    three_hundred_clients_wait_at_once,
    three_hundred_clients_arrive_over_five_seconds,
];

const CLIENTS: u32 = 300;
/// What the upstream takes for each answer.
const TAKES: Duration = Duration::from_secs(5);

fn route(world: World, origin: &Origin, path: &str) -> Host {
    let url = format!("ROUTE_URL={}", origin.url(path));
    Host::guest(world, "route", &["--env", &url])
}

fn the_route_forwards_and_logs_what_passes(world: World) {
    let origin = Origin::answering(&answer("201 Created", &["X-Up: stream"], "the answer"));
    let fields = [
        "CamelHttpUri: http://elsewhere",
        "camelhttpquery: x",
        "X-Kept: 1",
        "Camel: 2",
    ];
    for (path, start) in [
        ("/service", "POST /service?random="),
        ("/service?a=b", "POST /service?a=b&random="),
    ] {
        let host = route(world, &origin, path);
        for number in 0..3 {
            let body = format!("body {number}");
            let relayed = host
                .ask("POST", "/any/path", &fields, body.as_bytes())
                .expect(201);
            assert_eq!(relayed.text(), "the answer");
            assert_eq!(relayed.head.field("x-up"), Some("stream"));
            let record = origin.record();
            let seen = record.requests.last().unwrap();
            assert!(seen.head.start.starts_with(start), "{}", seen.head.start);
            assert_eq!(seen.body, body.as_bytes());
            assert_eq!(
                (seen.head.field("x-kept"), seen.head.field("camel")),
                (Some("1"), Some("2"))
            );
            for dropped in ["camelhttpuri", "camelhttpquery"] {
                assert_eq!(seen.head.field(dropped), None);
            }
            let log = &host.process.stdout;
            log.wait_for(&[&format!("receive request body {body}")]);
        }
        for line in [
            "receive answer with status 201",
            "receive answer body the answer",
        ] {
            host.process.stdout.wait_for(&[line]);
        }
    }
    let starts: HashSet<_> = origin
        .record()
        .requests
        .into_iter()
        .map(|seen| seen.head.start)
        .collect();
    assert_eq!(starts.len(), 6, "the random parameter repeats: {starts:?}");
}

/// Sends a request every so often, and expects that all are answered as one would be.
fn all_are_answered(world: World, pause: Duration) {
    let origin = Origin::serve(|visit| {
        while let Some(seen) = visit.request() {
            if seen.head.start.contains("slow") {
                thread::sleep(TAKES);
            }
            visit.wire.send(&answer("200 OK", &[], "up"));
        }
    });
    let fast = route(world, &origin, "/fast");
    fast.ask("POST", "/", &[], b"warm").expect(200);
    let idle = fast.process.threads();
    drop(fast);

    let host = route(world, &origin, "/slow");
    let begun = Instant::now();
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let mut client = host.connect();
        client.send(&request("POST", "/", &[], b"question"));
        clients.push(client);
        thread::sleep(pause);
    }
    origin.wait(|record| record.heads.len() == 1 + CLIENTS as usize);
    let waiting = host.process.threads();
    for client in &mut clients {
        assert_eq!(client.answer("POST").expect(200).text(), "up");
    }
    let took = begun.elapsed();
    assert!(
        took < TAKES + pause * CLIENTS + Duration::from_secs(5),
        "{took:?}"
    );
    assert!(
        waiting <= idle,
        "{waiting} threads while {CLIENTS} wait, {idle} when idle"
    );
    let record = origin.record();
    assert!(
        record.connections <= 1 + CLIENTS as usize,
        "{} connections",
        record.connections
    );
}

fn three_hundred_clients_wait_at_once(world: World) {
    all_are_answered(world, Duration::ZERO);
}

fn three_hundred_clients_arrive_over_five_seconds(world: World) {
    all_are_answered(world, TAKES / CLIENTS);
}
