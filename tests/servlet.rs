//! The house guests end to end: the forwarding servlet and the remote application.

use crate::harness::{Expected, Host, World, encode, pattern};
use crate::origin::{Origin, answer};
use crate::wire::{Answer, End, Wire, request};
use std::thread;

on_both_worlds![
    the_servlet_relays_the_remotes_page,
    every_status_of_the_sample_is_relayed,
    a_500_of_the_remote_is_a_division_by_zero_in_its_log,
    the_remote_refuses_parameters_that_make_no_sense,
    the_servlet_draws_delay_and_code_at_random,
    the_remotes_url_comes_from_the_environment,
    end_to_end_headers_are_relayed_and_hop_by_hop_headers_are_not,
    methods_and_bodies_are_forwarded,
    a_body_is_forwarded_while_it_arrives,
    trailers_of_the_remote_are_relayed,
    a_failing_upstream_is_a_502_in_one_line,
    a_forbidden_destination_is_a_403_in_one_line,
    a_remote_that_breaks_off_does_not_look_whole,
    the_ninth_pass_is_a_508,
    passes_through_the_host_count_as_well,
    a_remote_that_is_too_slow_is_a_504_in_one_line,
    five_hundred_clients_wait_without_a_thread_each,
    a_quarter_of_a_gibibyte_streams_both_ways_in_little_memory,
];

/// The variable of the guest's environment that names the remote's server.
const REMOTE_URL: &str = "REMOTE_URL";

const CODES: [u16; 8] = [200, 301, 400, 401, 403, 404, 500, 503];

fn target(parameters: &str, base: &str) -> String {
    format!("/localApp/async?{parameters}&remoteUrl={}", encode(base))
}

/// A servlet and a remote, each on a host of its own.
fn two_machines(world: World) -> (Host, Host, String) {
    let remote = Host::guest(world, "remote", &[]);
    let base = format!("http://{}", remote.addr);
    (Host::guest(world, "servlet", &[]), remote, base)
}

fn is_one_line(answer: &Answer) -> bool {
    let text = answer.text();
    text.trim().lines().count() == 1 && text.trim().len() > 10
}

fn the_servlet_relays_the_remotes_page(world: World) {
    let (servlet, _remote, base) = two_machines(world);
    let answer = servlet.get(&target("delay=1&code=200", &base)).expect(200);
    assert!(answer.text().contains("<title>"), "{}", answer.text());
    assert!(
        answer
            .head
            .field("content-type")
            .is_some_and(|kind| kind.starts_with("text/html"))
    );
    let head = servlet
        .ask("HEAD", &target("delay=0&code=200", &base), &[], b"")
        .expect(200);
    assert!(head.body.is_empty());
}

fn every_status_of_the_sample_is_relayed(world: World) {
    let (servlet, remote, base) = two_machines(world);
    for code in [201, 204, 301, 304, 400, 401, 403, 404, 503, 599] {
        let relayed = servlet
            .get(&target(&format!("delay=0&code={code}"), &base))
            .expect(code);
        let direct = remote
            .get(&format!("/remoteApp/remote?delay=0&code={code}"))
            .expect(code);
        assert_eq!(relayed.text(), direct.text());
        assert_eq!(
            relayed.body.is_empty(),
            matches!(code, 204 | 304),
            "body of {code}"
        );
    }
}

fn a_500_of_the_remote_is_a_division_by_zero_in_its_log(world: World) {
    let (servlet, remote, base) = two_machines(world);
    servlet.get(&target("delay=0&code=500", &base)).expect(500);
    remote
        .log()
        .wait_for(&[&world.app("remote"), "wasm trap: integer divide by zero"]);
    remote.log().wait("a frame of the backtrace", |lines| {
        lines
            .iter()
            .any(|line| line.starts_with(' ') && line.trim().starts_with("0:"))
            .then_some(())
    });
    assert!(
        !servlet.log().text().contains("wasm trap"),
        "the servlet did not fail"
    );
}

fn the_remote_refuses_parameters_that_make_no_sense(world: World) {
    let remote = Host::guest(world, "remote", &[]);
    for parameters in [
        "",
        "delay=0",
        "code=200",
        "delay=-1&code=200",
        "delay=x&code=200",
        "delay=&code=200",
        "delay=1.5&code=200",
        "delay=99999999999999999999999&code=200",
        "delay=0&code=x",
        "delay=0&code=100",
        "delay=0&code=199",
        "delay=0&code=600",
        "delay=0&code=-200",
        "delay=0&code=4294967496",
    ] {
        let answer = remote.get(&format!("/remoteApp/remote?{parameters}"));
        assert_eq!(
            (answer.status(), answer.end),
            (400, End::Whole),
            "{parameters:?}"
        );
        assert!(is_one_line(&answer), "{parameters:?}: {}", answer.text());
    }
}

fn the_servlet_draws_delay_and_code_at_random(world: World) {
    let origin = Origin::answering(&answer("200 OK", &[], ""));
    let host = Host::guest(world, "servlet", &["--env", "DELAY_MAX_MS=50"]);
    let mut wire = host.connect();
    for _ in 0..40 {
        wire.send(&request("GET", &target("", &origin.url("")), &[], b""));
        wire.answer("GET").expect(200);
    }
    let mut draws = Vec::new();
    for seen in origin.record().requests {
        let line = seen.head.start;
        let query = line.strip_prefix("GET /remoteApp/remote?").expect(&line);
        let value = |name: &str| -> u64 {
            let pairs = query.strip_suffix(" HTTP/1.1").unwrap().split('&');
            let found = pairs
                .filter_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
                .next();
            found.expect(name).parse().expect(name)
        };
        draws.push((value("delay"), value("code") as u16));
    }
    assert!(
        draws
            .iter()
            .all(|(delay, code)| *delay <= 50 && CODES.contains(code)),
        "{draws:?}"
    );
    assert!(draws.iter().any(|(_, code)| *code == 200), "{draws:?}");
    assert!(draws.iter().any(|(_, code)| *code != 200), "{draws:?}");
    assert!(
        draws.iter().any(|(delay, _)| *delay != draws[0].0),
        "{draws:?}"
    );
}

fn the_remotes_url_comes_from_the_environment(world: World) {
    let origin = Origin::answering(&answer("200 OK", &[], "from the environment"));
    let url = format!("{REMOTE_URL}={}", origin.url(""));
    let host = Host::guest(
        world,
        "servlet",
        &["--env", &url, "--env", "REMOTE_PATH=/else/where"],
    );
    let answer = host.get("/localApp/async?delay=7&code=404").expect(200);
    assert_eq!(answer.text(), "from the environment");
    let start = &origin.record().requests[0].head.start;
    assert!(start.starts_with("GET /else/where?"), "{start}");
    assert!(
        start.contains("delay=7") && start.contains("code=404"),
        "{start}"
    );
}

fn end_to_end_headers_are_relayed_and_hop_by_hop_headers_are_not(world: World) {
    let fields = [
        "Set-Cookie: a=1",
        "X-End: to-end",
        "Set-Cookie: b=2",
        "Connection: x-hop",
        "X-Hop: 1",
        "Keep-Alive: timeout=5",
    ];
    let origin = Origin::answering(&answer("200 OK", &fields, "ok"));
    let host = Host::guest(world, "servlet", &[]);
    let sent = [
        "Authorization: Basic abc",
        "X-A: 1",
        "X-A: 2",
        "Connection: x-named",
        "X-Named: 1",
    ];
    let answer = host
        .ask("GET", &target("", &origin.url("")), &sent, b"")
        .expect(200);
    assert_eq!(answer.head.all("set-cookie"), ["a=1", "b=2"]);
    assert_eq!(answer.head.field("x-end"), Some("to-end"));
    assert_eq!(
        (answer.head.field("x-hop"), answer.head.field("keep-alive")),
        (None, None)
    );

    let head = &origin.record().requests[0].head;
    assert_eq!(head.field("authorization"), Some("Basic abc"));
    assert_eq!(head.all("x-a"), ["1", "2"]);
    assert_eq!(head.field("x-named"), None);
    assert_eq!(head.field("host"), Some(origin.addr.to_string().as_str()));
}

fn methods_and_bodies_are_forwarded(world: World) {
    let origin = Origin::answering(&answer("200 OK", &[], "ok"));
    let host = Host::guest(world, "servlet", &[]);
    for (method, body) in [
        ("POST", &b"posted"[..]),
        ("PUT", b"put"),
        ("DELETE", b""),
        ("PATCH", b"p"),
    ] {
        host.ask(
            method,
            &target("delay=0&code=200", &origin.url("")),
            &[],
            body,
        )
        .expect(200);
        let record = origin.record();
        let seen = record.requests.last().unwrap();
        assert!(
            seen.head
                .start
                .starts_with(&format!("{method} /remoteApp/remote?"))
        );
        assert_eq!((&seen.body[..], seen.end), (body, End::Whole));
    }
}

fn a_body_is_forwarded_while_it_arrives(world: World) {
    let origin = Origin::echoing();
    Host::guest(world, "servlet", &[]).echoes_while_it_is_sent(&target("", &origin.url("")));
}

fn trailers_of_the_remote_are_relayed(world: World) {
    let origin = Origin::answering(
        b"HTTP/1.1 200 OK\r\nTrailer: x-sum\r\nTransfer-Encoding: chunked\r\n\r\n\
          3\r\nabc\r\n0\r\nX-Sum: 42\r\n\r\n",
    );
    let host = Host::guest(world, "servlet", &[]);
    let answer = host
        .ask("GET", &target("", &origin.url("")), &["TE: trailers"], b"")
        .expect(200);
    assert_eq!(
        (answer.text().as_str(), answer.trailer("x-sum")),
        ("abc", Some("42"))
    );
}

fn a_failing_upstream_is_a_502_in_one_line(world: World) {
    let host = Host::guest(world, "servlet", &[]);
    let closed = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let answer = host
        .get(&target("", &format!("http://{closed}")))
        .expect(502);
    assert!(is_one_line(&answer), "{}", answer.text());

    let garbage = Origin::answering(b"no HTTP at all\r\n\r\n");
    let answer = host.get(&target("", &garbage.url(""))).expect(502);
    assert!(is_one_line(&answer), "{}", answer.text());

    let answer = host.get(&target("", "http://nobody.internal")).expect(502);
    assert!(is_one_line(&answer), "{}", answer.text());
}

fn a_forbidden_destination_is_a_403_in_one_line(world: World) {
    let origin = Origin::answering(&answer("200 OK", &[], ""));
    let host = Host::guest(world, "servlet", &["--egress", "http://remote.internal"]);
    let answer = host.get(&target("", &origin.url(""))).expect(403);
    assert!(is_one_line(&answer), "{}", answer.text());
    assert_eq!(origin.record().connections, 0);

    let open = Host::guest(world, "servlet", &["--egress", &origin.url("")]);
    open.get(&target("", &origin.url(""))).expect(200);
}

fn a_remote_that_breaks_off_does_not_look_whole(world: World) {
    let host = Host::guest(world, "servlet", &[]);
    for head in [
        "Content-Length: 10\r\n\r\nabc",
        "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    ] {
        let origin = Origin::answering_once(format!("HTTP/1.1 200 OK\r\n{head}"));
        let mut wire = host.send("GET", &target("", &origin.url("")), &[], b"");
        let answer = wire.answer("GET");
        assert_eq!((answer.status(), answer.end), (200, End::Cut), "{head:?}");
        assert_eq!(answer.text(), "abc");
    }
}

/// Sends back, as a client's header, what each pass adds to `CDN-Loop`.
fn passes_through_the_host_count_as_well(world: World) {
    let origin = Origin::answering(&answer("200 OK", &[], ""));
    let host = Host::guest(world, "servlet", &[]);
    let target = target("", &origin.url(""));
    let passes = |count: usize| format!("CDN-Loop: other, {}", vec!["host"; count].join(","));
    host.ask("GET", &target, &[&passes(7)], b"").expect(200);
    let record = origin.record();
    let seen = record.requests[0].head.all("cdn-loop").join(",");
    let members: Vec<_> = seen.split(',').map(str::trim).collect();
    let times = |name: &str| members.iter().filter(|member| **member == name).count();
    assert_eq!(
        (times("other"), times("host"), times("servlet")),
        (1, 8, 1),
        "{seen}"
    );
    let answer = host.ask("GET", &target, &[&passes(8)], b"").expect(508);
    assert!(is_one_line(&answer), "{}", answer.text());
    assert_eq!(origin.record().requests.len(), 1);
}

fn a_remote_that_is_too_slow_is_a_504_in_one_line(world: World) {
    let origin = Origin::silent();
    let host = Host::guest(world, "servlet", &["--first-byte-timeout", "300ms"]);
    let answer = host.get(&target("", &origin.url(""))).expect(504);
    assert!(is_one_line(&answer), "{}", answer.text());
    origin.wait(|record| record.closed == 1);
}

fn the_ninth_pass_is_a_508(world: World) {
    let origin = Origin::answering(&answer("200 OK", &[], ""));
    let host = Host::guest(world, "servlet", &[]);
    let target = target("", &origin.url(""));
    let mut passes = Vec::new();
    for pass in 1..=8 {
        let fields: Vec<&str> = passes.iter().map(String::as_str).collect();
        host.ask("GET", &target, &fields, b"").expect(200);
        let record = origin.record();
        let seen = record.requests.last().unwrap().head.all("cdn-loop");
        assert!(!seen.is_empty(), "pass {pass} left no CDN-Loop");
        passes = seen
            .iter()
            .map(|value| format!("CDN-Loop: {value}"))
            .collect();
    }
    let fields: Vec<&str> = passes.iter().map(String::as_str).collect();
    let answer = host.ask("GET", &target, &fields, b"").expect(508);
    assert!(is_one_line(&answer), "{}", answer.text());
    assert_eq!(origin.record().requests.len(), 8);
    // Passes through others are not ours.
    let others = ["CDN-Loop: a, b, c, d, e, f, g, h, i, j"];
    host.ask("GET", &target, &others, b"").expect(200);
}

fn five_hundred_clients_wait_without_a_thread_each(world: World) {
    let (servlet, remote, base) = two_machines(world);
    servlet
        .get(&target("delay=2000&code=200", &base))
        .expect(200);
    let alone = (servlet.process.threads(), remote.process.threads());

    let target = target("delay=2000&code=200", &base);
    let mut clients: Vec<_> = (0..500)
        .map(|_| servlet.send("GET", &target, &[], b""))
        .collect();
    let mut most = (0, 0);
    for (number, client) in clients.iter_mut().enumerate() {
        most.0 = most.0.max(servlet.process.threads());
        most.1 = most.1.max(remote.process.threads());
        let answer = client.answer("GET");
        assert_eq!(
            (answer.status(), answer.end),
            (200, End::Whole),
            "client {number}"
        );
        assert!(answer.text().contains("<title>"));
    }
    assert!(
        most.0 <= alone.0,
        "servlet: {} threads, {} with one client",
        most.0,
        alone.0
    );
    assert!(
        most.1 <= alone.1,
        "remote: {} threads, {} with one client",
        most.1,
        alone.1
    );
}

/// Sends `length` bytes through the servlet to an echo and compares what comes back; gives the
/// most memory that the host had resident meanwhile.
pub fn stream_through(host: &Host, target: &str, length: u64) -> u64 {
    const PIECE: usize = 251 * 1024;
    let mut wire = host.send("POST", target, &["Transfer-Encoding: chunked"], b"");
    let mut writer: Wire<_> = wire.writer();
    let sender = thread::spawn(move || {
        let piece = pattern(PIECE);
        let mut left = length;
        while left > 0 {
            let count = left.min(PIECE as u64);
            writer.send_chunk(&piece[..count as usize]);
            left -= count;
        }
        writer.send_chunk(b"");
    });
    let head = wire.head().expect("a head");
    assert_eq!(head.status(), 200);
    let mut expected = Expected::new();
    let (mut sampled, mut most) = (0, 0);
    let (end, _) = wire.body(head.answer_framing("POST"), &mut |bytes| {
        expected.take(bytes);
        if expected.count - sampled > 1 << 20 {
            sampled = expected.count;
            most = most.max(host.process.resident_bytes());
        }
    });
    sender.join().unwrap();
    assert_eq!((expected.count, end), (length, End::Whole));
    most
}

fn a_quarter_of_a_gibibyte_streams_both_ways_in_little_memory(world: World) {
    let origin = Origin::echoing();
    let host = Host::guest(world, "servlet", &[]);
    let target = target("", &origin.url(""));
    stream_through(&host, &target, 4 << 20);
    let before = host.process.resident_bytes();
    let most = stream_through(&host, &target, 256 << 20);
    let growth = most.saturating_sub(before);
    assert!(
        growth < 32 << 20,
        "resident memory grew by {} KiB",
        growth / 1024
    );
}

/// `host serve` alone: both guests, the servlet's remote being the other one, in process.
#[test]
fn without_a_component_the_house_guests_are_served() {
    let host = Host::start::<&str>(&[]);
    let urls = host.log().wait("three URLs worth trying", |lines| {
        let prefix = format!("http://{}/", host.addr);
        let words = lines
            .iter()
            .skip(1)
            .flat_map(|line| line.split_whitespace());
        let urls: Vec<String> = words
            .filter_map(|word| word.strip_prefix(&prefix).map(|rest| format!("/{rest}")))
            .collect();
        (urls.len() >= 3).then_some(urls)
    });
    assert_eq!(urls.len(), 3, "{urls:?}");
    for url in &urls {
        let answer = host.get(url);
        assert!(
            CODES.contains(&answer.status()) && answer.end == End::Whole,
            "{url}: {answer:?}"
        );
    }
    for code in CODES {
        host.get(&format!("/localApp/async?delay=0&code={code}"))
            .expect(code);
    }
    let page = host.get("/remoteApp/remote?delay=0&code=200").expect(200);
    assert!(page.text().contains("<title>"));
    host.log()
        .wait_for(&["remote", "wasm trap: integer divide by zero"]);

    for other in ["/", "/localAppx", "/remoteApp2/remote", "/favicon.ico"] {
        let text = host.get(other).expect(404).text();
        assert!(text.contains(other) && text.contains("/localApp"), "{text}");
    }

    let origin = Origin::answering(&answer("200 OK", &[], ""));
    host.get(&target("", &origin.url(""))).expect(403);
    let open = Host::start(&["--egress", &origin.url("")]);
    open.get(&target("", &origin.url(""))).expect(200);
}

/// The sample's three machines, from the guests inside the binary.
#[test]
fn the_builtin_guests_make_the_samples_set_up() {
    for suffix in ["", "-p2"] {
        let remote = Host::start(&[format!("builtin:remote{suffix}")]);
        let base = format!("http://{}", remote.addr);
        let servlet = Host::start(&[&format!("builtin:servlet{suffix}"), "--egress", &base]);
        let answer = servlet.get(&target("delay=0&code=200", &base)).expect(200);
        assert!(answer.text().contains("<title>"));
        let hello = Host::start(&[format!("builtin:hello{suffix}")]);
        assert!(!hello.get("/").expect(200).body.is_empty());
    }
}
