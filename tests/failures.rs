//! A guest's failure never looks like success, and is not its neighbours' failure.

use crate::harness::{Host, World, call};
use crate::origin::{Origin, answer};
use crate::wire::{Answer, End, chunk, request};

on_both_worlds![
    a_trap_before_the_answer_is_a_500_with_its_reason_in_the_log,
    a_return_without_an_answer_is_a_500,
    a_panic_is_a_500_and_an_exit_is_one_too,
    a_trap_after_the_headers_breaks_the_connection,
    a_failure_leaves_the_connection_usable,
    a_log_that_cannot_be_written_changes_no_answer,
    a_neighbour_survives_a_trap,
    a_lost_answer_breaks_off_and_nothing_is_shared_after,
];

/// The id of a failed request, which the client's text repeats.
#[track_caller]
fn request_id(answer: &Answer) -> String {
    let id = answer
        .head
        .field("x-request-id")
        .expect("x-request-id")
        .to_owned();
    let text = answer.text();
    assert!(
        id.len() >= 8 && text.contains(&id),
        "the text does not name {id:?}: {text:?}"
    );
    assert!(
        text.len() < 400 && text.trim().lines().count() <= 3,
        "a long text: {text:?}"
    );
    let kind = answer.head.field("content-type").unwrap_or("none");
    assert!(kind.starts_with("text/plain"), "content-type is {kind}");
    id
}

/// Waits for the log line of a failure; gives it with the indented lines below it.
fn logged(host: &Host, needles: &[&str]) -> Vec<String> {
    host.log().wait_for(needles);
    // The next event's line, or the backtrace's last: whatever is there once a frame is.
    host.log()
        .wait(&format!("a backtrace below {needles:?}"), |lines| {
            let is_it = |line: &String| needles.iter().all(|needle| line.contains(needle));
            let at = lines.iter().position(is_it)?;
            let below = lines[at + 1..]
                .iter()
                .take_while(|line| line.starts_with([' ', '\t']));
            let block: Vec<String> = std::iter::once(&lines[at]).chain(below).cloned().collect();
            block
                .iter()
                .any(|line| line.trim_start().starts_with("0:"))
                .then_some(block)
        })
}

fn a_trap_before_the_answer_is_a_500_with_its_reason_in_the_log(world: World) {
    let host = Host::probe(world);
    let answer = host.get("/trap").expect(500);
    let id = request_id(&answer);
    assert!(
        !answer.text().contains("wasm trap"),
        "the client sees the guest's inside"
    );
    let block = logged(&host, &[&id, &world.app("probe"), "wasm trap: "]);
    assert!(block.len() > 1, "{block:?}");
    let lines = host.log().all();
    assert_eq!(
        lines.iter().filter(|line| line.contains(&id)).count(),
        1,
        "{lines:?}"
    );
}

fn a_return_without_an_answer_is_a_500(world: World) {
    let host = Host::probe(world);
    let id = request_id(&host.get("/return").expect(500));
    host.log().wait_for(&[&id, &world.app("probe")]);
}

fn a_panic_is_a_500_and_an_exit_is_one_too(world: World) {
    let host = Host::probe(world);
    let id = request_id(&host.get("/panic").expect(500));
    logged(&host, &[&id, &world.app("probe"), "unreachable"]);
    let id = request_id(&host.get("/exit?code=1").expect(500));
    host.log().wait_for(&[&id, &world.app("probe"), "exit"]);
}

fn a_trap_after_the_headers_breaks_the_connection(world: World) {
    let host = Host::probe(world);
    for bytes in [0, 1, 1000, 300_000] {
        let target = format!("/trap-after-headers?bytes={bytes}");
        let mut wire = host.send("GET", &target, &[], b"");
        let answer = wire.answer("GET");
        assert_eq!(
            (answer.status(), answer.end),
            (200, End::Cut),
            "after {bytes} bytes"
        );
        assert_eq!(answer.body.len(), bytes, "not all that was sent arrived");
        assert!(wire.at_end());
        let id = answer.head.field("x-request-id");
        let app = world.app("probe");
        let needles = ["wasm trap: ", app.as_str(), id.unwrap_or_default()];
        logged(&host, &needles);
    }
    host.log().wait("a line per failure", |lines| {
        (lines
            .iter()
            .filter(|line| line.contains("wasm trap: "))
            .count()
            >= 4)
            .then_some(())
    });
}

fn a_failure_leaves_the_connection_usable(world: World) {
    let host = Host::probe(world);
    let mut wire = host.connect();
    for (target, status) in [
        ("/hello", 200),
        ("/trap", 500),
        ("/return", 500),
        ("/hello", 200),
    ] {
        wire.send(&request("GET", target, &[], b""));
        wire.answer("GET").expect(status);
    }
}

/// 1. A request waits for an upstream, without a body and without an answer.
/// 2. Another request of the same app traps.
/// 3. On p3, where the two come to share an instance, the first one is run once more, by itself.
/// 4. The upstream answers, and the first request's client gets the answer.
fn a_neighbour_survives_a_trap(world: World) {
    let origin = Origin::answering_when_released(&answer("200 OK", &[], "survived"));
    let host = Host::probe(world);
    let mut waiting = host.send("GET", &call(&origin.url("/")), &[], b"");
    origin.wait(|record| record.requests.len() == 1);
    let runs = if world == World::P2 { 1 } else { 2 };
    // An instance takes a second request when it has become idle; hence more than one attempt.
    for _ in 0..20 {
        host.get("/trap").expect(500);
        if origin.record().requests.len() == runs {
            break;
        }
    }
    origin.wait(|record| record.requests.len() == runs);
    host.get("/trap").expect(500);
    origin.release();
    assert_eq!(waiting.answer("GET").expect(200).text(), "survived");
    assert_eq!(origin.record().requests.len(), runs);
}

/// 1. A request with a body is under way when a neighbour traps.
/// 2. On p2 it does not notice. On p3, where they shared the instance, it ends, and the log says
///    `instance-lost`.
/// 3. Then that version shares no instances: a third request does not notice a trap.
fn a_lost_answer_breaks_off_and_nothing_is_shared_after(world: World) {
    let host = Host::probe(world);
    let mut copying = host.send("POST", "/copy", &["Transfer-Encoding: chunked"], b"");
    copying.send_chunk(b"abc");
    assert_eq!(copying.head().expect("a head").status(), 200);
    assert_eq!(copying.chunked_bytes(3), b"abc");

    // As above, more than one attempt.
    let lost = || {
        host.log()
            .all()
            .iter()
            .any(|line| line.contains("instance-lost"))
    };
    for _ in 0..20 {
        host.get("/trap").expect(500);
        if world == World::P2 || lost() {
            break;
        }
    }
    match world {
        World::P2 => {
            copying.send(&[chunk(b"def"), chunk(b"")].concat());
            assert_eq!(copying.chunked_bytes(3), b"def");
            assert_eq!(copying.chunk().as_deref(), Some(&b""[..]));
        }
        World::P3 => {
            host.log().wait_for(&["instance-lost", &world.app("probe")]);
            assert_eq!(copying.chunk(), None, "a lost answer ended as if whole");
        }
    }

    let held = Origin::answering_when_released(&answer("200 OK", &[], "alone"));
    let mut alone = host.send("POST", &call(&held.url("/")), &[], b"with a body");
    held.wait(|record| record.heads.len() == 1);
    for _ in 0..3 {
        host.get("/trap").expect(500);
    }
    held.release();
    assert_eq!(alone.answer("POST").expect(200).text(), "alone");
}

/// The device behind stderr is full, so that each line fails.
fn a_log_that_cannot_be_written_changes_no_answer(world: World) {
    let addr = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .unwrap();
    let full = std::fs::File::create("/dev/full").unwrap();
    let mut process = std::process::Command::new(env!("CARGO_BIN_EXE_host"))
        .args(["serve", "--addr", &addr.to_string()])
        .arg(world.guest("probe"))
        .stderr(full)
        .spawn()
        .unwrap();
    let begun = std::time::Instant::now();
    while std::net::TcpStream::connect(addr).is_err() {
        assert!(
            begun.elapsed() < crate::harness::PATIENCE,
            "it does not listen"
        );
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let ask = |target: &str| {
        let mut wire = crate::wire::Wire::connect(addr);
        wire.send(&request("GET", target, &[], b""));
        wire.answer("GET").status()
    };
    for _ in 0..5 {
        // Leaves while its guest reads.
        let mut leaves = crate::wire::Wire::connect(addr);
        leaves.send(&request("POST", "/read", &["Content-Length: 10"], b""));
        assert_eq!(ask("/trap"), 500);
        drop(leaves);
        assert_eq!(ask("/return"), 500);
    }
    assert_eq!(ask("/hello"), 200);
    let id = rustix::process::Pid::from_child(&process);
    rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
    assert_eq!(process.wait().unwrap().code(), Some(0));
}
