//! How a guest's answer leaves.

use crate::harness::{Host, World, encode, pattern};
use crate::wire::{End, request};
use std::time::{Duration, Instant};

on_both_worlds![
    date_is_there_once,
    content_length_is_there_when_it_is_true,
    a_body_shorter_than_its_length_does_not_look_whole,
    a_body_longer_than_its_length_does_not_look_whole,
    answers_without_a_body_keep_the_connection,
    every_final_status_passes,
    server_sent_events_arrive_one_by_one,
    a_long_body_arrives_whole_in_odd_chunks,
    a_slow_reader_gets_every_byte,
    a_long_header_section_leaves_whole,
    every_instance_draws_its_own_random_numbers,
    headers_of_the_hop_cannot_be_set_by_a_guest,
    a_guest_learns_which_headers_are_malformed,
    trailers_go_to_a_client_that_asked_for_them,
    trailers_stay_away_from_a_client_that_did_not_ask,
    an_http_1_0_client_gets_no_chunks,
    pipelined_requests_are_answered_in_order,
    the_connection_closes_when_the_client_asks_for_it,
    a_failed_parse_is_a_400_and_the_end,
];

fn date_is_there_once(world: World) {
    let host = Host::probe(world);
    let guests_own = encode("Thu, 01 Jan 1970 00:00:00 GMT");
    for target in [
        "/hello",
        "/status?code=404",
        "/return",
        &format!("/set-header?name=date&value={guests_own}"),
    ] {
        let answer = host.get(target);
        let date = answer
            .head
            .field("date")
            .unwrap_or_else(|| panic!("{target} without a date"));
        assert!(date.len() == 29 && date.ends_with(" GMT"), "{date:?}");
    }
}

fn content_length_is_there_when_it_is_true(world: World) {
    let host = Host::probe(world);
    let known = host
        .get("/stream?bytes=1000&chunk=300&length=1")
        .expect(200);
    assert_eq!(known.head.field("content-length"), Some("1000"));
    assert_eq!(known.body, pattern(1000));

    let unknown = host.get("/stream?bytes=1000&chunk=300").expect(200);
    assert_eq!(unknown.head.field("content-length"), None);
    assert_eq!(unknown.head.field("transfer-encoding"), Some("chunked"));
    assert_eq!(unknown.body, pattern(1000));
}

fn a_body_shorter_than_its_length_does_not_look_whole(world: World) {
    let host = Host::probe(world);
    let mut wire = host.send("GET", "/short-length?declare=10&send=5", &[], b"");
    // The guest's mistake may be found before or after its head has left.
    if let Some(answer) = wire.try_answer("GET") {
        let outcome = (answer.status(), answer.end);
        assert!(
            outcome == (200, End::Cut) || outcome == (500, End::Whole),
            "{answer:?}"
        );
    }
    host.log().wait_for(&[&world.app("probe")]);
}

fn answers_without_a_body_keep_the_connection(world: World) {
    let host = Host::probe(world);
    let mut wire = host.connect();
    wire.send(&request("HEAD", "/stream?bytes=1000&length=1", &[], b""));
    let head = wire.answer("HEAD").expect(200);
    assert_eq!(head.head.field("content-length"), Some("1000"));
    for (method, target, status) in [
        ("HEAD", "/stream?bytes=1000", 200),
        ("HEAD", "/hello", 200),
        ("GET", "/status?code=204", 204),
        ("GET", "/status?code=304", 304),
        ("HEAD", "/status?code=404", 404),
        ("GET", "/hello", 200),
    ] {
        wire.send(&request(method, target, &[], b""));
        let answer = wire.answer(method).expect(status);
        assert_ne!(
            answer.head.field("connection"),
            Some("close"),
            "{method} {target}"
        );
        if status == 204 {
            assert_eq!(answer.head.field("content-length"), None);
        }
    }
}

fn every_final_status_passes(world: World) {
    let host = Host::probe(world);
    let mut wire = host.connect();
    for status in [
        200, 201, 202, 206, 301, 400, 401, 403, 404, 418, 429, 500, 503, 599,
    ] {
        wire.send(&request("GET", &format!("/status?code={status}"), &[], b""));
        wire.answer("GET").expect(status);
    }
}

fn server_sent_events_arrive_one_by_one(world: World) {
    let host = Host::probe(world);
    let mut wire = host.send("GET", "/events?count=4&every=200", &[], b"");
    assert_eq!(wire.head().expect("a head").status(), 200);
    let mut arrivals = Vec::new();
    for event in 0..4 {
        let text = format!("data: {event}\n\n");
        assert_eq!(wire.chunk().as_deref(), Some(text.as_bytes()));
        arrivals.push(Instant::now());
    }
    let spread = arrivals[3] - arrivals[0];
    assert!(
        spread > Duration::from_millis(400),
        "all events came within {spread:?}"
    );
    assert_eq!(wire.chunk().as_deref(), Some(&b""[..]));
}

fn a_long_body_arrives_whole_in_odd_chunks(world: World) {
    let host = Host::probe(world);
    for chunk in [1013, 65_537, 1_000_000] {
        let answer = host
            .get(&format!("/stream?bytes=5000011&chunk={chunk}"))
            .expect(200);
        assert!(
            answer.body == pattern(5_000_011),
            "bytes differ with chunks of {chunk}"
        );
    }
}

fn a_slow_reader_gets_every_byte(world: World) {
    let host = Host::probe(world);
    // More than the sockets hold, so the guest must wait for the reader of the first answer.
    let mut slow = host.send("GET", "/stream?bytes=20000000&chunk=65536", &[], b"");
    for _ in 0..3 {
        assert_eq!(host.get("/hello").expect(200).text(), "probe\n");
    }
    assert!(slow.answer("GET").expect(200).body == pattern(20_000_000));
}

fn a_long_header_section_leaves_whole(world: World) {
    let host = Host::probe(world);
    for bytes in [1000, 20_000] {
        let answer = host.get(&format!("/big-headers?bytes={bytes}")).expect(200);
        assert!(
            answer.head.bytes() >= bytes,
            "{} of {bytes} bytes",
            answer.head.bytes()
        );
    }
}

fn every_instance_draws_its_own_random_numbers(world: World) {
    let host = Host::guest(world, "probe", &["--max-instance-reuse-count", "1"]);
    let draws: Vec<String> = (0..3)
        .map(|_| host.get("/random").expect(200).text())
        .collect();
    assert!(
        draws[0] != draws[1] && draws[1] != draws[2] && draws[0] != draws[2],
        "{draws:?}"
    );
}

fn headers_of_the_hop_cannot_be_set_by_a_guest(world: World) {
    let host = Host::probe(world);
    for name in [
        "connection",
        "keep-alive",
        "transfer-encoding",
        "upgrade",
        "proxy-connection",
    ] {
        let answer = host
            .get(&format!("/set-header?name={name}&value=close"))
            .expect(200);
        assert!(
            answer.text().contains("forbidden"),
            "{name}: {}",
            answer.text()
        );
    }
    let answer = host.get("/set-header?name=x-own&value=a%20b").expect(200);
    assert_eq!(
        (answer.text().trim(), answer.head.field("x-own")),
        ("ok", Some("a b"))
    );
}

fn a_guest_learns_which_headers_are_malformed(world: World) {
    let host = Host::probe(world);
    for query in [
        "name=x-a&value=a%0D%0AX-B:%201",
        "name=x%20a&value=1",
        "name=&value=1",
    ] {
        let answer = host.get(&format!("/set-header?{query}")).expect(200);
        assert!(
            answer.text().contains("invalid-syntax"),
            "{query}: {}",
            answer.text()
        );
        assert_eq!(answer.head.field("x-b"), None);
    }
}

fn trailers_go_to_a_client_that_asked_for_them(world: World) {
    let host = Host::probe(world);
    let answer = host
        .ask("GET", "/trailers", &["TE: trailers"], b"")
        .expect(200);
    assert_eq!(answer.text(), "body\n");
    assert_eq!(answer.trailer("x-checksum"), Some("123"));
    assert_eq!(answer.trailer("x-second"), Some("two"));
}

fn trailers_stay_away_from_a_client_that_did_not_ask(world: World) {
    let host = Host::probe(world);
    let mut wire = host.connect();
    for _ in 0..2 {
        wire.send(&request("GET", "/trailers", &[], b""));
        let answer = wire.answer("GET").expect(200);
        assert_eq!(answer.text(), "body\n");
        assert!(!answer.has_trailers());
    }
}

fn an_http_1_0_client_gets_no_chunks(world: World) {
    let host = Host::probe(world);
    let mut wire = host.connect();
    wire.send(b"GET /stream?bytes=1000&chunk=300 HTTP/1.0\r\nHost: a\r\n\r\n");
    let answer = wire.answer("GET");
    assert_eq!(answer.head.field("transfer-encoding"), None);
    assert_eq!((answer.status(), answer.end), (200, End::Closed));
    assert_eq!(answer.body, pattern(1000));
}

fn pipelined_requests_are_answered_in_order(world: World) {
    let host = Host::probe(world);
    let mut wire = host.connect();
    let mut both = request("GET", "/sleep?ms=100", &[], b"");
    both.extend(request("POST", "/echo", &[], b"second"));
    both.extend(request("GET", "/hello", &[], b""));
    wire.send(&both);
    wire.answer("GET").expect(200);
    assert_eq!(wire.answer("POST").expect(200).text(), "second");
    assert_eq!(wire.answer("GET").expect(200).text(), "probe\n");
}

fn the_connection_closes_when_the_client_asks_for_it(world: World) {
    let host = Host::probe(world);
    let mut wire = host.send("GET", "/hello", &["Connection: close"], b"");
    let answer = wire.answer("GET").expect(200);
    assert_eq!(answer.head.field("connection"), Some("close"));
    assert!(wire.at_end());
}

fn a_failed_parse_is_a_400_and_the_end(world: World) {
    let host = Host::probe(world);
    let mut wire = host.connect();
    wire.send(b"GET /hello HTTP/1.1\r\nHost: a\r\nBad Name: 1\r\n\r\n");
    assert_eq!(wire.answer("GET").status(), 400);
    assert!(wire.at_end());
    assert_eq!(host.get("/hello").expect(200).text(), "probe\n");
}

fn a_body_longer_than_its_length_does_not_look_whole(world: World) {
    let host = Host::probe(world);
    let mut wire = host.send("GET", "/short-length?declare=3&send=10", &[], b"");
    if let Some(answer) = wire.try_answer("GET") {
        let outcome = (answer.status(), answer.end);
        assert!(
            outcome == (200, End::Cut) || outcome == (500, End::Whole),
            "{answer:?}"
        );
    }
    host.log().wait_for(&[&world.app("probe")]);
}
