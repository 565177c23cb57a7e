//! Calls that a guest makes: relayed, streamed, timed. What each failure is called has its own
//! table, in `outgoing_errors`.

use crate::harness::{Host, World, call, encode, pattern};
use crate::origin::{Origin, answer};
use crate::wire::{End, chunk, request};
use std::time::Instant;

on_both_worlds![
    calls_in_a_row_share_one_connection,
    a_pooled_connection_that_died_is_replaced,
    the_upstream_sees_what_the_guest_asked_for,
    an_answer_is_relayed_while_it_arrives,
    a_request_body_is_sent_while_it_arrives,
    a_long_request_body_arrives_whole,
    answers_in_every_framing_are_relayed,
    interim_answers_are_passed_over,
    trailers_are_relayed,
    hop_by_hop_headers_of_an_upstream_stay_on_their_hop,
    an_upstream_that_never_answers_times_out,
    an_upstream_that_stops_half_way_times_out,
    a_timeout_of_zero_is_no_panic,
    an_upstream_that_breaks_off_does_not_look_whole,
    a_dropped_call_is_cancelled_on_p3_alone,
];

fn ok() -> Origin {
    Origin::answering(&answer("200 OK", &["X-Up: stream"], "up"))
}

fn calls_in_a_row_share_one_connection(world: World) {
    let origin = ok();
    let host = Host::probe(world);
    let mut wire = host.connect();
    for _ in 0..10 {
        wire.send(&request("GET", &call(&origin.url("/")), &[], b""));
        let answer = wire.answer("GET").expect(200);
        assert_eq!(
            (answer.text().as_str(), answer.head.field("x-up")),
            ("up", Some("stream"))
        );
    }
    let record = origin.record();
    assert_eq!((record.requests.len(), record.connections), (10, 1));
}

/// The upstream closes after each answer, without having said so.
fn a_pooled_connection_that_died_is_replaced(world: World) {
    let origin = Origin::answering_once(answer("200 OK", &[], "up"));
    let host = Host::probe(world);
    for _ in 0..10 {
        assert_eq!(host.get(&call(&origin.url("/"))).expect(200).text(), "up");
    }
    assert_eq!(origin.record().requests.len(), 10);
}

fn the_upstream_sees_what_the_guest_asked_for(world: World) {
    let origin = ok();
    let host = Host::probe(world);
    for path in ["/a%2Fb//c/../d?x=%20&y=%e4&&z", "/", "/?", "/~;,=@:!$'()*"] {
        let target = format!(
            "{}&method=PUT&header={}&header={}&body-bytes=1000&chunk=100",
            call(&origin.url(path)),
            encode("X-One:1"),
            encode("x-one:2")
        );
        host.get(&target).expect(200);
        let record = origin.record();
        let seen = record.requests.last().unwrap();
        assert_eq!(seen.head.start, format!("PUT {path} HTTP/1.1"));
        assert_eq!(seen.head.all("host"), [origin.addr.to_string()]);
        assert_eq!(seen.head.all("x-one"), ["1", "2"]);
        for name in ["connection", "keep-alive", "upgrade", "trailer"] {
            assert_eq!(seen.head.field(name), None);
        }
        assert_eq!((seen.body.len(), seen.end), (1000, End::Whole));
    }
}

fn an_answer_is_relayed_while_it_arrives(world: World) {
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let origin = Origin::serve(move |visit| {
        if visit.request().is_some() {
            visit
                .wire
                .send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
            visit.wire.send_chunk(b"first");
            wait.lock().unwrap().recv().unwrap();
            visit.wire.send(&[chunk(b"second"), chunk(b"")].concat());
        }
    });
    let host = Host::probe(world);
    let mut wire = host.send("GET", &call(&origin.url("/")), &[], b"");
    assert_eq!(wire.head().expect("a head").status(), 200);
    assert_eq!(wire.chunked_bytes(5), b"first");
    go.send(()).unwrap();
    assert_eq!(wire.chunked_bytes(6), b"second");
    assert_eq!(wire.chunk().as_deref(), Some(&b""[..]));
}

fn a_request_body_is_sent_while_it_arrives(world: World) {
    let origin = Origin::echoing();
    let target = format!("/forward?url={}", encode(&origin.url("/")));
    Host::probe(world).echoes_while_it_is_sent(&target);
}

fn a_long_request_body_arrives_whole(world: World) {
    let origin = ok();
    let host = Host::probe(world);
    let body = pattern(3_000_017);
    let target = format!("/forward?url={}", encode(&origin.url("/")));
    host.ask("POST", &target, &[], &body).expect(200);
    let record = origin.record();
    assert!(record.requests[0].body == body && record.requests[0].end == End::Whole);
}

fn answers_in_every_framing_are_relayed(world: World) {
    let host = Host::probe(world);
    let table: &[&[u8]] = &[
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc",
        b"HTTP/1.0 200 OK\r\n\r\nabc",
    ];
    for bytes in table {
        let origin = Origin::answering_once(*bytes);
        let answer = host.get(&call(&origin.url("/"))).expect(200);
        assert_eq!(answer.text(), "abc", "{}", String::from_utf8_lossy(bytes));
    }
    for status in ["204 No Content", "304 Not Modified"] {
        let origin = Origin::answering(format!("HTTP/1.1 {status}\r\n\r\n").as_bytes());
        let answer = host
            .get(&call(&origin.url("/")))
            .expect(status[..3].parse().unwrap());
        assert!(answer.body.is_empty());
    }
}

fn interim_answers_are_passed_over(world: World) {
    let bytes = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n\
        HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nup";
    let origin = Origin::answering(bytes);
    let host = Host::probe(world);
    for _ in 0..2 {
        assert_eq!(host.get(&call(&origin.url("/"))).expect(200).text(), "up");
    }
}

fn trailers_are_relayed(world: World) {
    let origin = Origin::answering(
        b"HTTP/1.1 200 OK\r\nTrailer: x-sum\r\nTransfer-Encoding: chunked\r\n\r\n\
          3\r\nabc\r\n0\r\nX-Sum: 42\r\n\r\n",
    );
    let host = Host::probe(world);
    let answer = host
        .ask("GET", &call(&origin.url("/")), &["TE: trailers"], b"")
        .expect(200);
    assert_eq!(
        (answer.text().as_str(), answer.trailer("x-sum")),
        ("abc", Some("42"))
    );
    assert!(!host.get(&call(&origin.url("/"))).expect(200).has_trailers());
}

fn hop_by_hop_headers_of_an_upstream_stay_on_their_hop(world: World) {
    let fields = [
        "Connection: X-Hop",
        "X-Hop: 1",
        "Keep-Alive: timeout=9",
        "X-End: 1",
    ];
    let origin = Origin::answering(&answer("200 OK", &fields, "up"));
    let host = Host::probe(world);
    let answer = host.get(&call(&origin.url("/"))).expect(200);
    assert_eq!(answer.head.field("x-end"), Some("1"));
    assert_eq!(
        (answer.head.field("x-hop"), answer.head.field("keep-alive")),
        (None, None)
    );
}

#[track_caller]
fn fails_as(host: &Host, target: &str, code: &str) {
    let answer = host.get(target).expect(502);
    let text = answer.text();
    assert!(
        text.starts_with("error: ") && text.contains(code),
        "not {code}: {text:?}"
    );
}

fn an_upstream_that_never_answers_times_out(world: World) {
    let origin = Origin::silent();
    let host = Host::probe(world);
    let begun = Instant::now();
    fails_as(
        &host,
        &format!("{}&first-byte-ms=300", call(&origin.url("/"))),
        "timeout",
    );
    assert!(begun.elapsed().as_millis() >= 300);
    origin.wait(|record| record.closed == 1);
}

fn an_upstream_that_stops_half_way_times_out(world: World) {
    let origin = Origin::stopping_after(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc");
    let host = Host::probe(world);
    let target = format!("{}&between-bytes-ms=300", call(&origin.url("/")));
    let answer = host.send("GET", &target, &[], b"").answer("GET");
    assert_eq!((answer.status(), answer.end), (200, End::Cut));
    assert_eq!(answer.text(), "abc");
    origin.wait(|record| record.closed == 1);
}

fn a_timeout_of_zero_is_no_panic(world: World) {
    let host = Host::probe(world);
    let origin = Origin::silent();
    for kind in ["connect-ms", "first-byte-ms"] {
        fails_as(
            &host,
            &format!("{}&{kind}=0", call(&origin.url("/"))),
            "timeout",
        );
    }
    let stuck = Origin::stopping_after(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n");
    let target = format!("{}&between-bytes-ms=0", call(&stuck.url("/")));
    let answer = host.send("GET", &target, &[], b"").try_answer("GET");
    assert!(answer.is_none_or(|answer| answer.status() == 502 || answer.end == End::Cut));
    host.get("/hello").expect(200);
}

fn an_upstream_that_breaks_off_does_not_look_whole(world: World) {
    let host = Host::probe(world);
    for rest in [
        "Content-Length: 10\r\n\r\nabc",
        "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    ] {
        let origin = Origin::answering_once(format!("HTTP/1.1 200 OK\r\n{rest}"));
        let answer = host
            .send("GET", &call(&origin.url("/")), &[], b"")
            .answer("GET");
        assert_eq!((answer.status(), answer.end), (200, End::Cut), "{rest:?}");
        assert_eq!(answer.text(), "abc");
    }
}

/// On 0.2 a status future that is dropped cancels nothing; on 0.3 a subtask that is cancelled does.
fn a_dropped_call_is_cancelled_on_p3_alone(world: World) {
    let origin = Origin::answering_when_released(&answer("200 OK", &[], "late"));
    let host = Host::probe(world);
    let target = format!("/call-drop?url={}&ms=200", encode(&origin.url("/")));
    host.get(&target).expect(200);
    let dropped = origin.wait(|record| record.requests.len() == 1);
    assert_eq!(dropped.requests[0].end, End::Whole);
    origin.release();
    if world == World::P3 {
        origin.wait(|record| record.closed == 1);
    }
    // What came too late has harmed nothing, and the connection is in order or gone.
    assert_eq!(host.get(&call(&origin.url("/"))).expect(200).text(), "late");
    assert!(!host.log().text().contains("panicked"));
}
