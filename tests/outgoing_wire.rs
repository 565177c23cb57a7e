//! What an upstream finds on its socket: segments, framing, Host, trailers, and broken bodies.

use crate::harness::{Expected, Host, PATIENCE, World, call, encode, pattern};
use crate::origin::{Origin, answer};
use crate::wire::{End, Wire, chunk};
use std::io::Read;
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

on_both_worlds![
    a_small_request_leaves_in_one_write,
    a_small_relayed_request_leaves_in_one_write,
    a_small_relayed_chunked_request_leaves_with_its_data,
    each_chunk_leaves_in_one_write,
    an_upstream_that_does_not_read_stops_the_guest,
    an_answer_before_the_body_is_sent_is_seen_at_once,
    host_is_sent_once_as_the_guest_wrote_it,
    a_guest_sets_host_only_where_it_may,
    trailers_are_sent_and_announced_only_when_there_are_some,
    a_dropped_answer_does_not_cut_the_body,
    a_body_that_has_ended_does_not_cut_the_answer,
    a_body_that_breaks_off_closes_its_connection,
    an_answer_dropped_half_way_closes_its_connection,
];

/// What each read of an origin gave, on all its connections.
type Reads = Arc<Mutex<Vec<Vec<u8>>>>;

/// Answers when what has been read is a whole request, by the tests' own decoder.
fn recording() -> (Origin, Reads) {
    let reads = Reads::default();
    let recorded = reads.clone();
    let origin = Origin::serve(move |visit| {
        let mut bytes = Vec::new();
        let mut buffer = vec![0; 1 << 20];
        while let Ok(count @ 1..) = visit.wire.socket().read(&mut buffer) {
            recorded.lock().unwrap().push(buffer[..count].to_vec());
            bytes.extend_from_slice(&buffer[..count]);
            if is_whole(&bytes) {
                bytes.clear();
                visit.wire.send(&answer("200 OK", &[], "up"));
            }
        }
    });
    (origin, reads)
}

fn is_whole(bytes: &[u8]) -> bool {
    let mut wire = Wire::new(bytes);
    let head = wire.head();
    head.is_some_and(|head| wire.body(head.request_framing(), &mut |_| {}).0 == End::Whole)
}

/// Whether a chunked request that is cut off here is cut between two chunks.
fn ends_between_chunks(mut bytes: &[u8]) -> bool {
    let head = bytes.windows(4).position(|four| four == b"\r\n\r\n");
    bytes = &bytes[head.expect("a head") + 4..];
    while !bytes.is_empty() {
        let Some(line) = bytes.windows(2).position(|two| two == b"\r\n") else {
            return false;
        };
        let size = usize::from_str_radix(str::from_utf8(&bytes[..line]).unwrap(), 16).unwrap();
        match bytes.get(line + 2 + size + 2..) {
            Some(rest) => bytes = rest,
            None => return false,
        }
    }
    true
}

fn a_small_request_leaves_in_one_write(world: World) {
    let post = |more: &str| ("GET", format!("&method=POST{more}"), &[][..], Vec::new());
    leave_in_one_write(
        world,
        "/call",
        &[
            ("GET", String::new(), &[], Vec::new()),
            post(""),
            post("&body-bytes=100"),
            post("&body-bytes=100&header=content-length:100"),
            post("&body-bytes=8000"),
            post("&body-bytes=8000&header=content-length:8000"),
            post("&body-bytes=100&header=trailer:x-sum&trailer=x-sum:7"),
        ],
    );
}

fn a_small_relayed_request_leaves_in_one_write(world: World) {
    let table = [
        ("GET", String::new(), &[][..], Vec::new()),
        ("POST", String::new(), &[], pattern(100)),
    ];
    leave_in_one_write(world, "/forward", &table);
}

/// That a chunked body has ended is news of its own: hyper looks for the last chunk only when the
/// one before has been taken, and the guest may be suspended by then.
fn a_small_relayed_chunked_request_leaves_with_its_data(world: World) {
    let (origin, reads) = recording();
    let host = Host::probe(world);
    let target = format!("/forward?url={}", encode(&origin.url("/")));
    let body = [chunk(&pattern(100)), chunk(b"")].concat();
    for _ in 0..2 {
        reads.lock().unwrap().clear();
        let fields = ["Transfer-Encoding: chunked"];
        host.ask("POST", &target, &fields, &body).expect(200);
        let reads = reads.lock().unwrap();
        match &reads[..] {
            [all] => assert!(is_whole(all)),
            [most, end] => assert!(ends_between_chunks(most) && *end == chunk(b"")),
            more => panic!("{} reads", more.len()),
        }
    }
}

/// Method, what follows the URL, fields, body.
type Asked = (&'static str, String, &'static [&'static str], Vec<u8>);

/// Each twice, on a new connection and on one from the pool.
#[track_caller]
fn leave_in_one_write(world: World, path: &str, table: &[Asked]) {
    let (origin, reads) = recording();
    let host = Host::probe(world);
    for (method, more, fields, body) in table {
        let target = format!("{path}?url={}{more}", encode(&origin.url("/")));
        for _ in 0..2 {
            reads.lock().unwrap().clear();
            host.ask(method, &target, fields, body).expect(200);
            let reads = reads.lock().unwrap();
            let lengths: Vec<_> = reads.iter().map(Vec::len).collect();
            assert_eq!(
                lengths.len(),
                1,
                "{method} {target} {fields:?} came as {lengths:?}"
            );
        }
    }
}

fn each_chunk_leaves_in_one_write(world: World) {
    let (origin, reads) = recording();
    let host = Host::probe(world);
    for (bytes, chunk) in [(2_000, 100), (20_000, 1_000), (225_000, 15_000)] {
        reads.lock().unwrap().clear();
        let target = format!(
            "{}&method=POST&body-bytes={bytes}&chunk={chunk}&every=3",
            call(&origin.url("/"))
        );
        host.get(&target).expect(200);
        let mut so_far = Vec::new();
        for read in &*reads.lock().unwrap() {
            so_far.extend_from_slice(read);
            assert!(
                ends_between_chunks(&so_far),
                "a read ends inside a chunk, after {} bytes of {bytes} in chunks of {chunk}: {:?}",
                so_far.len(),
                String::from_utf8_lossy(&read[read.len().saturating_sub(12)..])
            );
        }
        assert!(reads.lock().unwrap().len() > 5, "the body was not streamed");
    }
}

fn an_upstream_that_does_not_read_stops_the_guest(world: World) {
    const BYTES: u64 = 64 << 20;
    let origin = Origin::serve(|visit| {
        let Some(head) = visit.head() else { return };
        visit.wait_for_release();
        let mut expected = Expected::new();
        let framing = head.request_framing();
        let (end, _) = visit.wire.body(framing, &mut |bytes| expected.take(bytes));
        let text = format!("{} {end:?}", expected.count);
        visit.wire.send(&answer("200 OK", &[], &text));
    });
    let host = Host::probe(world);
    host.get("/hello").expect(200);
    let before = host.process.resident_bytes();
    let target = format!(
        "{}&method=POST&body-bytes={BYTES}&chunk=65536",
        call(&origin.url("/"))
    );
    let mut client = host.send("GET", &target, &[], b"");
    origin.wait(|record| record.heads.len() == 1);
    // Far longer than 64 MiB take.
    let until = Instant::now() + Duration::from_secs(1);
    let mut most = 0;
    while Instant::now() < until {
        most = most.max(host.process.resident_bytes());
        thread::sleep(Duration::from_millis(20));
    }
    assert!(client.is_silent());
    origin.release();
    assert_eq!(
        client.answer("GET").expect(200).text(),
        format!("{BYTES} Whole")
    );
    let growth = most.saturating_sub(before) / 1024;
    assert!(growth < 32 << 10, "resident memory grew by {growth} KiB");
}

fn an_answer_before_the_body_is_sent_is_seen_at_once(world: World) {
    for closes in [false, true] {
        let origin = Origin::serve(move |visit| {
            visit.head();
            visit
                .wire
                .send(&answer("413 Content Too Large", &[], "too much"));
            if closes {
                visit.wire.finish_sending();
            }
            visit.wait_for_release();
        });
        let host = Host::probe(world);
        let target = format!(
            "{}&method=POST&body-bytes={}&chunk=65536",
            call(&origin.url("/")),
            64 << 20
        );
        let begun = Instant::now();
        assert_eq!(host.get(&target).expect(413).text(), "too much");
        assert!(begun.elapsed() < PATIENCE / 3, "{:?}", begun.elapsed());
        origin.release();
    }
}

fn host_is_sent_once_as_the_guest_wrote_it(world: World) {
    let origin = Origin::answering(&answer("200 OK", &[], ""));
    let host = Host::probe(world);
    let port = origin.addr.port();
    let sent = |origin: &Origin, authority: &str| {
        host.get(&call(&format!("http://{authority}/"))).expect(200);
        let record = origin.record();
        let head = &record.requests.last().unwrap().head;
        assert_eq!(head.start, "GET / HTTP/1.1");
        assert_eq!(head.all("host"), [authority]);
    };
    for name in ["127.0.0.1", "localhost", "LocalHost", "[::ffff:127.0.0.1]"] {
        sent(&origin, &format!("{name}:{port}"));
    }
    let always_up = || answer("200 OK", &[], "");
    if let Ok(listener) = TcpListener::bind("[::1]:0") {
        let port = listener.local_addr().unwrap().port();
        let origin = Origin::serve_on(listener, move |visit| {
            while visit.request().is_some() {
                visit.wire.send(&always_up());
            }
        });
        sent(&origin, &format!("[::1]:{port}"));
    }
    // Only where this user may listen on port 80, and nobody does.
    let address = match world {
        World::P2 => "127.0.80.2",
        World::P3 => "127.0.80.3",
    };
    match TcpListener::bind((address, 80)) {
        Err(error) => eprintln!("not tested with port 80: {error}"),
        Ok(listener) => {
            let origin = Origin::serve_on(listener, move |visit| {
                while visit.request().is_some() {
                    visit.wire.send(&always_up());
                }
            });
            sent(&origin, &format!("{address}:80"));
            sent(&origin, address);
        }
    }
}

fn a_guest_sets_host_only_where_it_may(world: World) {
    let origin = Origin::answering(&answer("200 OK", &[], ""));
    let target = format!("{}&header=host:other.example", call(&origin.url("/")));
    let authority = origin.addr.to_string();
    for (arguments, expected) in [
        (&[][..], &authority[..]),
        (&["--egress-set-host"], "other.example"),
    ] {
        Host::guest(world, "probe", arguments)
            .get(&target)
            .expect(200);
        let record = origin.record();
        let head = &record.requests.last().unwrap().head;
        assert_eq!(head.all("host"), [expected], "{arguments:?}");
    }
}

fn trailers_are_sent_and_announced_only_when_there_are_some(world: World) {
    let origin = Origin::answering(&answer("200 OK", &[], ""));
    let host = Host::probe(world);
    let own = "/call?method=POST&body-bytes=3";
    let with = [chunk(b"abc"), b"0\r\nX-Sum: 7\r\n\r\n".to_vec()].concat();
    let without = [chunk(b"abc"), chunk(b"")].concat();
    let fields = ["Transfer-Encoding: chunked", "Trailer: x-sum"];
    for has_trailers in [true, false] {
        let (more, body, fields) = match has_trailers {
            true => ("&header=trailer:x-sum&trailer=x-sum:7", &with, &fields[..]),
            false => ("", &without, &fields[..1]),
        };
        let url = encode(&origin.url("/"));
        host.get(&format!("{own}{more}&url={url}")).expect(200);
        host.ask("POST", &format!("/forward?url={url}"), fields, body)
            .expect(200);
        let sum = ("x-sum".to_owned(), "7".to_owned());
        let expected = if has_trailers { vec![sum] } else { Vec::new() };
        for seen in origin.record().requests.iter().rev().take(2) {
            assert_eq!((seen.body.len(), seen.end), (3, End::Whole));
            assert_eq!(seen.trailers, expected);
            assert_eq!(seen.head.field("trailer").is_some(), has_trailers);
        }
    }
}

/// 1. The guest begins to send a body, piece by piece.
/// 2. The upstream answers at once, the guest drops that answer and is done with its own.
/// 3. The rest of the body is sent all the same.
fn a_dropped_answer_does_not_cut_the_body(world: World) {
    const BYTES: usize = 200_000;
    for (length, after) in [(0, 0), (1 << 20, 0), (1 << 20, 10)] {
        let early = answer("200 OK", &[], &"x".repeat(length));
        let origin = Origin::serve(move |visit| {
            let Some(head) = visit.head() else { return };
            let mut writer = visit.wire.writer();
            let early = early.clone();
            // From beside, because a long answer is read only while the body is sent.
            let answering = thread::spawn(move || {
                let _ = std::io::Write::write_all(writer.socket(), &early);
            });
            visit.body(head);
            answering.join().unwrap();
        });
        let host = Host::probe(world);
        let target = format!(
            "/call-part?url={}&method=POST&body-bytes={BYTES}&chunk=10000&every=25&after={after}",
            encode(&origin.url("/"))
        );
        assert_eq!(host.get(&target).expect(200).text(), "dropped\n");
        let record = origin.wait(|record| record.requests.len() == 1);
        let seen = &record.requests[0];
        assert_eq!(
            (seen.body.len(), seen.end),
            (BYTES, End::Whole),
            "an answer of {length} bytes was dropped after {after}"
        );
        assert!(seen.body == pattern(BYTES));
    }
}

fn a_body_that_has_ended_does_not_cut_the_answer(world: World) {
    let origin = Origin::serve(|visit| {
        while visit.request().is_some() {
            visit
                .wire
                .send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
            for _ in 0..20 {
                visit.wire.send_chunk(b"0123456789");
                thread::sleep(Duration::from_millis(10));
            }
            visit.wire.send_chunk(b"");
        }
    });
    let host = Host::probe(world);
    for more in ["", "&body-bytes=3", "&body-bytes=3&header=content-length:3"] {
        let target = format!("{}&method=POST{more}", call(&origin.url("/")));
        assert_eq!(host.get(&target).expect(200).body.len(), 200);
    }
    assert_eq!(origin.record().connections, 1);
}

fn a_body_that_breaks_off_closes_its_connection(world: World) {
    for (early, length) in [
        (false, ""),
        (false, "&header=content-length:100"),
        (true, ""),
    ] {
        let origin = Origin::serve(move |visit| {
            while let Some(head) = visit.wire.head() {
                if early {
                    visit.wire.send(&answer("200 OK", &[], "up"));
                }
                let framing = head.request_framing();
                if visit.wire.body(framing, &mut |_| {}).0 != End::Whole {
                    return visit.note_close();
                }
                if !early {
                    visit.wire.send(&answer("200 OK", &[], "up"));
                }
            }
        });
        let host = Host::probe(world);
        let url = call(&origin.url("/"));
        assert_eq!(host.get(&url).expect(200).text(), "up");
        let target = format!("{url}&method=POST&body-bytes=100&chunk=10&every=20&cut=50{length}");
        let broken = host.get(&target);
        assert_eq!(
            broken.status(),
            if early { 200 } else { 502 },
            "{}",
            broken.text()
        );
        origin.wait(|record| record.closed == 1);
        assert_eq!(host.get(&url).expect(200).text(), "up");
        assert_eq!(origin.record().connections, 2);
    }
}

fn an_answer_dropped_half_way_closes_its_connection(world: World) {
    for after in [0, 10] {
        let mut bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n".to_vec();
        bytes.extend(pattern(100));
        let origin = Origin::stopping_after(&bytes);
        let host = Host::probe(world);
        let target = format!("/call-part?url={}&after={after}", encode(&origin.url("/")));
        for calls in 1..=2 {
            host.get(&target).expect(200);
            origin.wait(|record| record.closed == calls && record.connections == calls);
        }
    }
}

/// The decoder above, on what it has to tell apart.
#[test]
fn a_read_that_ends_inside_a_chunk_is_told_from_one_between_two() {
    let bytes = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n";
    let whole = |length: &usize| ends_between_chunks(&bytes[..*length]);
    let ends: Vec<usize> = (47..=bytes.len()).filter(whole).collect();
    assert_eq!(ends, [47, 55, 77, 82]);
    assert!(is_whole(bytes) && !is_whole(&bytes[..81]));
}
