//! Limits on what a client may send, and how slowly: each at the limit and one beyond it.

use crate::harness::{Host, World};
use crate::wire::{End, request};

on_both_worlds![
    a_request_line_has_a_limit,
    a_head_has_a_limit,
    header_lines_have_a_limit,
    a_body_has_a_limit_when_told_so,
    a_body_over_its_limit_ends_an_answer_that_has_begun,
    a_body_that_does_not_go_on_is_a_408,
    a_guest_that_does_not_read_is_not_the_clients_fault,
    a_head_that_does_not_come_is_a_408,
    a_preface_that_does_not_go_on_is_not_waited_for,
    an_idle_connection_is_closed,
    a_client_that_does_not_read_is_reset_and_its_guest_cancelled,
    a_connection_carries_as_many_requests_as_told,
];

fn a_request_line_has_a_limit(world: World) {
    let host = Host::guest(world, "probe", &["--max-request-line", "1000"]);
    let target = |line: usize| {
        let rest = line - "GET  HTTP/1.1".len() - "/hello?".len();
        format!("/hello?{}", "x".repeat(rest))
    };
    host.get(&target(1000)).expect(200);
    let answer = host.get(&target(1001)).expect(414);
    assert!(answer.text().contains("1000"), "{}", answer.text());
}

fn a_head_has_a_limit(world: World) {
    let host = Host::guest(world, "probe", &["--max-header-bytes", "8192"]);
    let head = |bytes: usize| {
        let bare = request("GET", "/hello", &["X: "], b"").len();
        request(
            "GET",
            "/hello",
            &[&format!("X: {}", "x".repeat(bytes - bare))],
            b"",
        )
    };
    for (bytes, status) in [(8192, 200), (8193, 431)] {
        let mut wire = host.connect();
        assert_eq!(head(bytes).len(), bytes);
        wire.send(&head(bytes));
        assert_eq!(wire.answer("GET").status(), status, "{bytes} bytes");
    }
}

fn header_lines_have_a_limit(world: World) {
    let host = Host::guest(world, "probe", &["--max-headers", "20"]);
    // `Host` is one of them.
    for (lines, status) in [(20, 200), (21, 431)] {
        let fields: Vec<String> = (1..lines).map(|n| format!("X-{n}: {n}")).collect();
        let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
        let answer = host.ask("GET", "/hello", &fields, b"");
        assert_eq!(answer.status(), status, "{lines} lines");
    }
}

fn a_body_has_a_limit_when_told_so(world: World) {
    let host = Host::guest(world, "probe", &["--max-request-body", "1000"]);
    let body = vec![b'x'; 1001];
    host.ask("POST", "/read", &[], &body[..1000]).expect(200);
    host.ask("POST", "/read", &[], &body).expect(413);
    let chunked = ["Transfer-Encoding: chunked"];
    for (bytes, status) in [(1000, 200), (1001, 413)] {
        let mut wire = host.send("POST", "/read", &chunked, b"");
        wire.send_chunk(&body[..bytes]);
        wire.send_chunk(b"");
        assert_eq!(wire.answer("POST").status(), status, "{bytes} bytes");
    }
    host.log().wait_for(&["body-too-large"]);
}

fn a_body_over_its_limit_ends_an_answer_that_has_begun(world: World) {
    let host = Host::guest(world, "probe", &["--max-request-body", "10"]);
    let mut wire = host.send("POST", "/copy", &["Transfer-Encoding: chunked"], b"");
    wire.send_chunk(b"0123456789");
    assert_eq!(wire.head().expect("a head").status(), 200);
    assert_eq!(wire.chunked_bytes(10), b"0123456789");
    wire.send_chunk(b"x");
    assert_eq!(wire.chunk(), None, "half a copy ended as if whole");
}

fn a_body_that_does_not_go_on_is_a_408(world: World) {
    let host = Host::guest(world, "probe", &["--body-timeout", "300ms"]);
    for fields in [["Content-Length: 10"], ["Transfer-Encoding: chunked"]] {
        let mut wire = host.send("POST", "/read", &fields, b"");
        wire.answer("POST").expect(408);
    }
    host.log().wait_for(&["body-timeout", &world.app("probe")]);
}

fn a_guest_that_does_not_read_is_not_the_clients_fault(world: World) {
    let host = Host::guest(world, "probe", &["--body-timeout", "300ms"]);
    let mut wire = host.send("POST", "/wait-read?ms=900", &["Content-Length: 3"], b"");
    host.get("/sleep?ms=600").expect(200);
    wire.send(b"abc");
    wire.answer("POST").expect(200);
}

fn a_head_that_does_not_come_is_a_408(world: World) {
    let host = Host::guest(world, "probe", &["--header-timeout", "300ms"]);
    let mut nothing = host.connect();
    assert_eq!(nothing.answer("GET").expect(408).end, End::Whole);
    assert!(nothing.at_end());

    // The time of the second head counts from its first byte, however many follow.
    let mut slow = host.connect();
    slow.send(&request("GET", "/hello", &[], b""));
    slow.answer("GET").expect(200);
    host.get("/sleep?ms=600").expect(200);
    slow.send(&request("GET", "/hello", &[], b""));
    slow.answer("GET").expect(200);
    slow.send(b"GET /hello HTTP/1.1\r\n");
    slow.answer("GET").expect(408);
    assert!(slow.at_end());
}

fn an_idle_connection_is_closed(world: World) {
    let host = Host::guest(world, "probe", &["--keep-alive-timeout", "300ms"]);
    let mut wire = host.connect();
    wire.send(&request("GET", "/hello", &[], b""));
    wire.answer("GET").expect(200);
    assert!(wire.at_end());
    // A guest that takes its time does not make its connection idle.
    host.get("/sleep?ms=900").expect(200);
}

fn a_client_that_does_not_read_is_reset_and_its_guest_cancelled(world: World) {
    let host = Host::guest(world, "probe", &["--write-timeout", "500ms"]);
    let mut wire = host.send("GET", "/stream?bytes=1000000000&chunk=65536", &[], b"");
    host.log().wait_for(&["client closed", &world.app("probe")]);
    // What the kernels had between them, and then the reset.
    let answer = wire.try_answer("GET");
    assert!(answer.is_none_or(|answer| answer.end == End::Cut));
}

fn a_connection_carries_as_many_requests_as_told(world: World) {
    let host = Host::guest(world, "probe", &["--max-requests-per-connection", "3"]);
    let mut wire = host.connect();
    for number in 1..=3 {
        wire.send(&request("GET", "/hello", &[], b""));
        let answer = wire.answer("GET").expect(200);
        let says_so = answer.head.field("connection") == Some("close");
        assert_eq!(says_so, number == 3, "request {number}");
    }
    assert!(wire.at_end());
}

fn a_preface_that_does_not_go_on_is_not_waited_for(world: World) {
    let host = Host::guest(world, "probe", &["--header-timeout", "300ms"]);
    for begun in [&b"PRI "[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut wire = host.connect();
        wire.send(begun);
        // Settings may come before the end.
        let mut rest = Vec::new();
        let _ = std::io::Read::read_to_end(wire.socket(), &mut rest);
    }
    host.get("/hello").expect(200);
}
