//! What a guest is told about a request.

use crate::harness::{Host, World, pattern};
use crate::wire::{Answer, chunk, request};

on_both_worlds![
    method_and_target_arrive_byte_for_byte,
    scheme_and_authority_arrive,
    an_absolute_target_gives_the_authority,
    headers_arrive_as_often_as_they_were_sent,
    hop_by_hop_headers_stay_on_their_hop,
    a_body_arrives_whole_in_both_framings,
    a_body_arrives_while_it_is_sent,
    trailers_of_a_request_arrive,
    a_body_that_breaks_off_does_not_look_whole,
    expect_continue_is_answered_when_the_guest_reads,
    expect_continue_is_not_answered_for_a_guest_that_does_not_read,
    a_guest_may_leave_a_body_half_read,
];

/// The value that the probe's `/headers` gives for a pseudo-header.
fn told(answer: &Answer, key: &str) -> String {
    let text = answer.text();
    let (pseudo, _) = text.split_once("\n\n").expect("an empty line");
    let line = pseudo
        .lines()
        .find(|line| line.starts_with(key))
        .expect(key);
    line[key.len()..].trim_start_matches(':').trim().to_owned()
}

/// The request headers that `/headers` lists, in order.
fn listed(answer: &Answer) -> Vec<String> {
    let text = answer.text();
    let (_, headers) = text.split_once("\n\n").expect("an empty line");
    headers.lines().map(str::to_owned).collect()
}

fn fnv1a64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

fn method_and_target_arrive_byte_for_byte(world: World) {
    let host = Host::probe(world);
    let target = "/headers?%7e=%2F&a=//b/../c/./&d=%E4+%20&e&&=;,'()*!$@:?/";
    for method in ["GET", "DELETE", "OPTIONS", "PATCH", "BREW", "get"] {
        let answer = host.ask(method, target, &[], b"").expect(200);
        assert_eq!(told(&answer, "method"), method);
        assert_eq!(told(&answer, "path"), target);
    }
}

fn scheme_and_authority_arrive(world: World) {
    let host = Host::probe(world);
    for authority in [
        "edge.example",
        "Edge.Example:8081",
        "127.0.0.1:80",
        "[::1]:9",
    ] {
        let answer = host
            .ask("GET", "/headers", &[&format!("Host: {authority}")], b"")
            .expect(200);
        assert_eq!(told(&answer, "scheme").to_lowercase(), "http");
        assert_eq!(told(&answer, "authority"), authority);
    }
}

fn an_absolute_target_gives_the_authority(world: World) {
    let host = Host::probe(world);
    let answer = host.ask(
        "GET",
        "http://other.example:81/headers?x",
        &["Host: other.example:81"],
        b"",
    );
    let answer = answer.expect(200);
    assert_eq!(told(&answer, "authority"), "other.example:81");
    assert_eq!(told(&answer, "path"), "/headers?x");
}

fn headers_arrive_as_often_as_they_were_sent(world: World) {
    let host = Host::probe(world);
    let fields = [
        "X-A: one",
        "Cookie: a=1; b=2",
        "x-a: two, three",
        "X-Empty:",
        "X-A: one",
    ];
    let answer = host.ask("GET", "/headers", &fields, b"").expect(200);
    let listed = listed(&answer);
    let named = |name: &str| -> Vec<String> {
        let of_name = listed.iter().filter_map(|line| line.strip_prefix(name));
        of_name.map(|value| value.trim().to_owned()).collect()
    };
    assert_eq!(named("x-a:"), ["one", "two, three", "one"]);
    assert_eq!(named("cookie:"), ["a=1; b=2"]);
    assert_eq!(named("x-empty:"), [""]);
}

fn hop_by_hop_headers_stay_on_their_hop(world: World) {
    let host = Host::probe(world);
    let fields = [
        "Connection: keep-alive, X-Named, TE",
        "X-Named: 1",
        "X-Kept: 1",
        "Keep-Alive: timeout=5",
        "Proxy-Connection: keep-alive",
        "Upgrade: something",
        "TE: trailers",
        "Transfer-Encoding: chunked",
    ];
    let answer = host
        .ask("POST", "/headers", &fields, &chunk(b""))
        .expect(200);
    let listed = listed(&answer);
    let has = |name: &str| listed.iter().any(|line| line.starts_with(name));
    assert!(has("x-kept:"), "{listed:?}");
    for name in [
        "connection:",
        "x-named:",
        "keep-alive:",
        "proxy-connection:",
        "upgrade:",
    ] {
        assert!(!has(name), "{name} reached the guest: {listed:?}");
    }
    assert!(!has("transfer-encoding:"), "{listed:?}");
}

fn a_body_arrives_whole_in_both_framings(world: World) {
    let host = Host::probe(world);
    let body = pattern(1_000_003);
    let expected = format!("{} {:016x}\n", body.len(), fnv1a64(&body));
    assert_eq!(
        host.ask("POST", "/read", &[], &body).expect(200).text(),
        expected
    );

    let mut chunked = Vec::new();
    for piece in body.chunks(7919) {
        chunked.extend(chunk(piece));
    }
    chunked.extend(chunk(b""));
    let answer = host
        .ask("POST", "/read", &["Transfer-Encoding: chunked"], &chunked)
        .expect(200);
    assert_eq!(answer.text(), expected);

    let nothing = format!("0 {:016x}\n", fnv1a64(b""));
    assert_eq!(
        host.ask("POST", "/read", &["Content-Length: 0"], b"")
            .expect(200)
            .text(),
        nothing
    );
}

fn a_body_arrives_while_it_is_sent(world: World) {
    let host = Host::probe(world);
    for target in ["/echo", "/copy"] {
        host.echoes_while_it_is_sent(target);
    }
}

fn trailers_of_a_request_arrive(world: World) {
    let host = Host::probe(world);
    let fields = [
        "Transfer-Encoding: chunked",
        "Trailer: x-sum",
        "TE: trailers",
    ];
    let body = b"3\r\nabc\r\n0\r\nX-Sum: 42\r\n\r\n";
    let answer = host.ask("POST", "/echo", &fields, body).expect(200);
    assert_eq!(
        (answer.text().as_str(), answer.trailer("x-sum")),
        ("abc", Some("42"))
    );
}

fn a_body_that_breaks_off_does_not_look_whole(world: World) {
    let host = Host::probe(world);
    for (field, part) in [
        ("Content-Length: 10", &b"abc"[..]),
        ("Transfer-Encoding: chunked", b"3\r\nabc\r\n"),
    ] {
        let mut wire = host.send("POST", "/copy", &[field], part);
        assert_eq!(wire.head().expect("a head").status(), 200);
        assert_eq!(wire.chunked_bytes(3), b"abc");
        wire.finish_sending();
        assert_eq!(
            wire.chunk(),
            None,
            "an echo of half a body ended as if whole"
        );
    }
    assert_eq!(host.get("/hello").expect(200).text(), "probe\n");
}

fn expect_continue_is_answered_when_the_guest_reads(world: World) {
    let host = Host::probe(world);
    let mut wire = host.connect();
    let fields = ["Expect: 100-continue", "Content-Length: 3"];
    let sent = std::time::Instant::now();
    wire.send(&request("POST", "/wait-read?ms=300", &fields, b""));
    assert_eq!(wire.head().expect("an interim head").status(), 100);
    let waited = sent.elapsed().as_millis();
    assert!(
        waited >= 300,
        "100 came after {waited} ms, before the guest read"
    );
    wire.send(b"abc");
    let answer = wire.answer("POST").expect(200);
    assert_eq!(answer.text(), format!("3 {:016x}\n", fnv1a64(b"abc")));
    assert!(answer.interim.is_empty(), "100 came twice");
}

fn expect_continue_is_not_answered_for_a_guest_that_does_not_read(world: World) {
    let host = Host::probe(world);
    let answer = host.ask(
        "POST",
        "/hello",
        &["Expect: 100-continue", "Content-Length: 3"],
        b"",
    );
    assert!(!answer.interim.contains(&100));
    answer.expect(200);
}

fn a_guest_may_leave_a_body_half_read(world: World) {
    let host = Host::probe(world);
    host.ask("POST", "/drop-body?after=1000", &[], &pattern(3000))
        .expect(200);
    // Whether this connection lasts is the host's choice; others are not touched.
    assert_eq!(host.get("/hello").expect(200).text(), "probe\n");
}
