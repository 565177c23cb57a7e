//! Connections to upstreams: reused, bounded, waited for, and never left behind.

use crate::harness::{Host, PATIENCE, World, call, encode, sockets};
use crate::origin::{Origin, answer};
use crate::wire::request;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

on_both_worlds![
    no_hidden_limit_holds_up_parallel_calls,
    connections_per_upstream_are_bounded,
    a_call_over_the_limit_fails_and_names_it,
    the_total_limit_spans_destinations,
    the_limit_that_was_reached_is_the_one_named,
    a_turn_that_its_caller_left_goes_to_the_next,
    a_dropped_call_holds_no_connection,
    a_dead_pooled_connection_is_retried_once_and_never_after_a_body,
    of_several_dead_pooled_connections_one_is_retried,
    a_connection_that_its_upstream_closed_is_closed_here,
    many_requests_leave_few_sockets_behind,
];

const TIME_WAIT: &str = "06";
const CLOSE_WAIT: &str = "08";

fn up() -> Vec<u8> {
    answer("200 OK", &[], "up")
}

fn slow(time: Duration) -> Origin {
    Origin::serve(move |visit| {
        while visit.request().is_some() {
            thread::sleep(time);
            visit.wire.send(&up());
        }
    })
}

#[track_caller]
fn is_over_the_limit(host: &Host, origin: &Origin, flag: &str) {
    let known = host.log().all().len();
    let target = format!("{}&connect-ms=300", call(&origin.url("/")));
    let text = host.get(&target).expect(502).text();
    assert_eq!(text, "error: connection-limit-reached\n");
    host.log().wait(flag, |lines| {
        let mut news = lines[known..].iter();
        news.any(|line| line.contains(flag)).then_some(())
    });
}

fn no_hidden_limit_holds_up_parallel_calls(world: World) {
    const CALLS: usize = 300;
    let origin = Origin::answering_when_released(&up());
    let host = Host::probe(world);
    let target = |number| call(&origin.url(&format!("/{number}?number={number}")));
    let mut clients: Vec<_> = (0..CALLS)
        .map(|number| host.send("GET", &target(number), &[], b""))
        .collect();
    origin.wait(|record| record.requests.len() == CALLS);
    origin.release();
    for client in &mut clients {
        client.answer("GET").expect(200);
    }
    for number in 0..CALLS {
        host.get(&target(number)).expect(200);
    }
    assert_eq!(origin.record().connections, CALLS);
}

fn connections_per_upstream_are_bounded(world: World) {
    let origin = slow(Duration::from_millis(50));
    let host = Host::guest(world, "probe", &["--max-connections-per-upstream", "2"]);
    let mut clients: Vec<_> = (0..10)
        .map(|_| host.send("GET", &call(&origin.url("/")), &[], b""))
        .collect();
    for client in &mut clients {
        client.answer("GET").expect(200);
    }
    let record = origin.record();
    assert_eq!((record.connections, record.requests.len()), (2, 10));
}

fn a_call_over_the_limit_fails_and_names_it(world: World) {
    let origin = Origin::answering_when_released(&up());
    let host = Host::guest(world, "probe", &["--max-connections-per-upstream", "2"]);
    let mut held: Vec<_> = (1..=2)
        .map(|number| {
            let client = host.send("GET", &call(&origin.url("/")), &[], b"");
            origin.wait(|record| record.requests.len() == number);
            client
        })
        .collect();
    is_over_the_limit(&host, &origin, "--max-connections-per-upstream");
    // The limit is one per destination.
    let other = Origin::answering(&up());
    host.get(&call(&other.url("/"))).expect(200);
    origin.release();
    for client in &mut held {
        client.answer("GET").expect(200);
    }
    host.get(&call(&origin.url("/"))).expect(200);
    assert_eq!(origin.record().connections, 2);
}

fn the_total_limit_spans_destinations(world: World) {
    let one = Origin::answering_when_released(&up());
    let two = Origin::answering(&up());
    let host = Host::guest(world, "probe", &["--max-upstream-connections", "1"]);
    let mut held = host.send("GET", &call(&one.url("/")), &[], b"");
    one.wait(|record| record.requests.len() == 1);
    is_over_the_limit(&host, &two, "--max-upstream-connections");
    // Waits for the connection to the other destination, which is of no use once it is idle.
    let mut waiting = host.send("GET", &call(&two.url("/")), &[], b"");
    assert_eq!(two.record().connections, 0);
    one.release();
    let released = Instant::now();
    held.answer("GET").expect(200);
    waiting.answer("GET").expect(200);
    assert!(released.elapsed() < Duration::from_secs(5));
    for origin in [&one, &two, &two, &one] {
        host.get(&call(&origin.url("/"))).expect(200);
    }
    assert_eq!(two.record().requests.len(), 3);
}

fn the_limit_that_was_reached_is_the_one_named(world: World) {
    let limits = [
        "--max-connections-per-upstream",
        "2",
        "--max-upstream-connections",
        "3",
    ];
    let origins = [(); 3].map(|()| Origin::silent());
    let host = Host::guest(world, "probe", &limits);
    let hold = |origin: &Origin, number: usize| {
        let client = host.send("GET", &call(&origin.url("/")), &[], b"");
        origin.wait(|record| record.requests.len() == number);
        client
    };
    let _first = [hold(&origins[0], 1), hold(&origins[0], 2)];
    is_over_the_limit(&host, &origins[0], limits[0]);
    let _second = hold(&origins[1], 1);
    is_over_the_limit(&host, &origins[2], limits[2]);
    is_over_the_limit(&host, &origins[1], limits[2]);
}

/// 1. One connection is all there may be, and it is in use. Two more calls wait for it.
/// 2. The client of the first one leaves, about when the connection becomes free.
/// 3. The other call gets the connection, although it was not its turn.
fn a_turn_that_its_caller_left_goes_to_the_next(world: World) {
    let origin = slow(Duration::from_millis(4));
    let limits = [
        "--max-connections-per-upstream",
        "1",
        "--connect-timeout",
        "3s",
    ];
    let host = Host::guest(world, "probe", &limits);
    let target = call(&origin.url("/"));
    for round in 0..300 {
        let [mut first, leaving, mut staying] =
            [(); 3].map(|()| host.send("GET", &target, &[], b""));
        thread::sleep(Duration::from_micros(3_000 + round * 10));
        drop(leaving);
        first.answer("GET").expect(200);
        staying.answer("GET").expect(200);
    }
}

/// The upstream answers the first request on its first connection, reads the second one and
/// closes. What it does with the next connection is the row's business.
fn a_dead_pooled_connection_is_retried_once_and_never_after_a_body(world: World) {
    let table = [
        ("", true, 200, 2),
        ("", false, 502, 2),
        ("&method=HEAD", true, 200, 2),
        ("&method=DELETE", true, 200, 2),
        ("&method=POST", true, 502, 1),
        ("&method=POST&body-bytes=3", true, 502, 1),
        ("&method=PUT&body-bytes=3", true, 502, 1),
        (
            "&method=PUT&body-bytes=3&header=content-length:3",
            true,
            502,
            1,
        ),
    ];
    let host = Host::probe(world);
    for (more, recovers, status, attempts) in table {
        let connections = AtomicUsize::new(0);
        let origin = Origin::serve(move |visit| {
            let number = connections.fetch_add(1, Ordering::Relaxed);
            if number == 0 {
                visit.request();
                visit.wire.send(&up());
            }
            while visit.request().is_some() && number > 0 && recovers {
                visit.wire.send(&answer("200 OK", &[], ""));
            }
        });
        let url = call(&origin.url("/"));
        host.get(&url).expect(200);
        let answer = host.get(&format!("{url}{more}"));
        assert_eq!(answer.status(), status, "{more}: {}", answer.text());
        let seen = origin.record().requests.len() - 1;
        assert_eq!(seen, attempts, "{more} was sent {seen} times");
    }
}

fn of_several_dead_pooled_connections_one_is_retried(world: World) {
    let origin = Origin::serve(|visit| {
        visit.request();
        visit.wait_for_release();
        visit.wire.send(&up());
        visit.request();
    });
    let host = Host::probe(world);
    let target = call(&origin.url("/"));
    let mut clients = [(); 4].map(|()| host.send("GET", &target, &[], b""));
    origin.wait(|record| record.requests.len() == clients.len());
    origin.release();
    for client in &mut clients {
        client.answer("GET").expect(200);
    }
    let _ = host.get(&target);
    let attempts = origin.record().requests.len() - clients.len();
    assert!(attempts <= 2, "a GET was sent {attempts} times");
}

fn a_connection_that_its_upstream_closed_is_closed_here(world: World) {
    let origin = Origin::serve(|visit| {
        if visit.request().is_some() {
            visit.wait_for_release();
            visit.wire.send(&up());
        }
    });
    let host = Host::probe(world);
    let mut clients = [(); 20].map(|()| host.send("GET", &call(&origin.url("/")), &[], b""));
    origin.wait(|record| record.requests.len() == clients.len());
    origin.release();
    for client in &mut clients {
        client.answer("GET").expect(200);
    }
    let begun = Instant::now();
    // Nothing but the kernel knows.
    while sockets(&[origin.addr.port()], CLOSE_WAIT) > 0 {
        assert!(
            begun.elapsed() < PATIENCE / 5,
            "idle sockets stay in CLOSE_WAIT"
        );
        thread::sleep(Duration::from_millis(10));
    }
}

/// 20 000 requests of 500 clients, 100 000 where `HOST_SOAK` is set.
fn many_requests_leave_few_sockets_behind(world: World) {
    const CLIENTS: usize = 500;
    let each = if std::env::var_os("HOST_SOAK").is_some() {
        200
    } else {
        40
    };
    let origin = Origin::answering(&up());
    let host = Host::probe(world);
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| host.connect()).collect();
    let target = format!("/forward?url={}", encode(&origin.url("/")));
    let bytes = request("GET", &target, &[], b"");
    for _ in 0..each {
        for client in &mut clients {
            client.send(&bytes);
        }
        for client in &mut clients {
            client.answer("GET").expect(200);
        }
    }
    let ports = [origin.addr.port(), host.addr.port()];
    let waiting = sockets(&ports, TIME_WAIT);
    assert!(waiting < 300, "{waiting} sockets in TIME_WAIT");
    assert_eq!(sockets(&ports, CLOSE_WAIT), 0, "in CLOSE_WAIT");
    let record = origin.record();
    assert_eq!(record.requests.len(), each * CLIENTS);
    assert!(
        record.connections <= CLIENTS,
        "{} connections",
        record.connections
    );
}

/// The guest drops its call; the request is sent to its end and no longer waited for.
fn a_dropped_call_holds_no_connection(world: World) {
    let origin = Origin::serve(|visit| {
        if visit
            .request()
            .is_some_and(|seen| seen.head.start.contains("/hang"))
        {
            visit.wait_for_release();
        } else {
            visit.wire.send(&up());
        }
    });
    let limits = ["--max-connections-per-upstream", "1"];
    let host = Host::guest(world, "probe", &limits);
    let hang = format!("/call-drop?ms=100&url={}", encode(&origin.url("/hang")));
    assert_eq!(host.get(&hang).expect(200).text(), "dropped\n");
    host.get(&call(&origin.url("/"))).expect(200);
    origin.release();
}
