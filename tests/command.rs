//! The command line: what it accepts, what it refuses and in which words.

use crate::harness::{Host, Scratch, World, call, run};
use crate::origin::{Origin, answer};
use crate::wire::{Answer, request};
use std::ffi::OsStr;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

on_both_worlds![
    a_component_without_a_handler_is_named_as_such,
    a_missing_import_is_named,
    a_damaged_component_is_named_as_such,
    a_component_is_read_from_stdin,
    a_precompiled_component_needs_its_flag,
    compiled_code_goes_where_a_link_points,
    inspect_says_what_a_component_is,
    the_house_guests_import_the_versions_that_the_runtime_links,
    the_guest_sees_the_environment_it_was_given_and_no_more,
    the_guest_sees_the_directory_it_was_given_and_no_more,
    headers_of_the_command_line_replace_those_of_the_request,
    the_guests_output_carries_a_prefix,
    the_guests_output_carries_no_prefix_when_told_so,
    sockets_are_closed_unless_asked_for,
    scripts_for_wasmtime_serve_run,
    an_instance_serves_as_often_as_told,
    requests_over_the_limit_wait_in_a_bounded_queue,
    connections_over_the_limit_are_not_accepted,
    a_deadline_is_a_504,
    computing_for_too_long_is_a_503,
    guests_that_compute_leave_a_core_to_others,
    memory_over_its_limit_is_refused,
];

/// Runs `host` with a command that must fail with this code and one sentence about `needles`.
#[track_caller]
fn fails<A: AsRef<OsStr>>(arguments: &[A], code: i32, needles: &[&str]) {
    let (exit, stdout, stderr) = run(arguments);
    assert_eq!(exit, code, "{stderr}");
    assert_eq!(stdout, "");
    assert_eq!(
        stderr.trim().lines().count(),
        1,
        "not one sentence:\n{stderr}"
    );
    for needle in needles {
        assert!(
            stderr.to_lowercase().contains(needle),
            "no {needle:?} in {stderr:?}"
        );
    }
}

#[track_caller]
fn refuses(path: &Path, needles: &[&str]) {
    let serve: [&OsStr; 4] = [
        "serve".as_ref(),
        path.as_ref(),
        "--addr".as_ref(),
        "127.0.0.1:0".as_ref(),
    ];
    fails(&serve, 2, needles);
}

/// The component of a guest, some of its names replaced by others of the same length.
fn renamed(world: World, guest: &str, from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut bytes = std::fs::read(world.guest(guest)).unwrap();
    let mut count = 0;
    for at in 0..bytes.len() - from.len() {
        if &bytes[at..at + from.len()] == from.as_bytes() {
            bytes[at..at + from.len()].copy_from_slice(to.as_bytes());
            count += 1;
        }
    }
    assert!(count > 0, "{guest} has no {from}");
    bytes
}

#[test]
fn a_core_module_is_named_as_such() {
    let scratch = Scratch::new("core-module", World::P3);
    let path = scratch.file("core.wasm", b"\0asm\x01\0\0\0");
    refuses(&path, &["core.wasm", "core module", "component"]);
}

#[test]
fn what_is_no_wasm_is_named_as_such() {
    let scratch = Scratch::new("no-wasm", World::P3);
    refuses(
        &scratch.file("text.wasm", b"this is a shopping list\nmilk\n"),
        &["text.wasm"],
    );
    refuses(&scratch.file("empty.wasm", b""), &["empty.wasm"]);
    refuses(&scratch.path().join("absent.wasm"), &["absent.wasm"]);
    fails(
        &["serve", "builtin:nobody"],
        2,
        &["builtin:nobody", "servlet"],
    );
}

fn a_component_without_a_handler_is_named_as_such(world: World) {
    let scratch = Scratch::new("no-handler", world);
    refuses(
        &scratch.file("bare.wasm", b"\0asm\x0d\0\x01\0"),
        &["bare.wasm", "handler"],
    );
    let (from, to) = match world {
        World::P2 => ("wasi:http/incoming-handler", "acme:http/incoming-handler"),
        World::P3 => ("wasi:http/handler", "acme:http/handler"),
    };
    let path = scratch.file("other.wasm", &renamed(world, "hello", from, to));
    refuses(&path, &["other.wasm", "wasi:http", "handler"]);
}

fn a_missing_import_is_named(world: World) {
    let scratch = Scratch::new("missing-import", world);
    let bytes = renamed(world, "hello", "wasi:http/types@", "acme:http/types@");
    refuses(
        &scratch.file("wants.wasm", &bytes),
        &["wants.wasm", "acme:http/types@", "import"],
    );
}

fn a_damaged_component_is_named_as_such(world: World) {
    let scratch = Scratch::new("damaged", world);
    let bytes = std::fs::read(world.guest("hello")).unwrap();
    refuses(
        &scratch.file("half.wasm", &bytes[..bytes.len() / 2]),
        &["half.wasm"],
    );
}

#[test]
fn an_unknown_flag_is_named() {
    let (code, _, stderr) = run(&["serve", "--no-such-flag"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("--no-such-flag"), "{stderr}");
}

#[test]
fn what_cannot_be_honoured_is_refused_by_name() {
    let table = [
        ("-S", "nn", "nn"),
        ("-S", "threads", "threads"),
        ("-S", "http=n", "http"),
        ("-W", "component-model=n", "component-model"),
        ("-S", "no-such-option", "no-such-option"),
    ];
    for (group, option, name) in table {
        let arguments = [
            "serve",
            "builtin:hello",
            "--addr",
            "127.0.0.1:0",
            group,
            option,
        ];
        let (code, _, stderr) = run(&arguments);
        assert_eq!(code, 2, "{group} {option}: {stderr}");
        assert!(stderr.contains(name), "{group} {option}: {stderr}");
    }
}

#[test]
fn an_address_in_use_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    fails(&["serve", "builtin:hello", "--addr", &addr], 1, &[&addr]);
}

fn a_component_is_read_from_stdin(world: World) {
    let bytes = std::fs::read(world.guest("probe")).unwrap();
    let host = Host::start_with_stdin(&["-"], &bytes);
    assert_eq!(host.get("/hello").expect(200).text(), "probe\n");
}

fn a_precompiled_component_needs_its_flag(world: World) {
    let scratch = Scratch::new("precompiled", world);
    let (guest, output) = (world.guest("hello"), scratch.path().join("guest.cwasm"));
    let compile: [&OsStr; 4] = [
        "compile".as_ref(),
        guest.as_ref(),
        "-o".as_ref(),
        output.as_ref(),
    ];
    let (code, _, stderr) = run(&compile);
    assert_eq!(code, 0, "{stderr}");
    refuses(&output, &["guest.cwasm", "--allow-precompiled"]);
    let host = Host::start(&[output.as_os_str(), OsStr::new("--allow-precompiled")]);
    host.get("/").expect(200);
}

fn inspect_says_what_a_component_is(world: World) {
    let guest = world.guest("probe");
    let (code, text, stderr) = run(&["inspect".as_ref(), guest.as_os_str()]);
    assert_eq!(code, 0, "{stderr}");
    let (code, json, stderr) = run(&["inspect".as_ref(), guest.as_os_str(), "--json".as_ref()]);
    assert_eq!(code, 0, "{stderr}");
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    for key in ["world", "imports", "exports"] {
        assert!(!json[key].is_null(), "no {key}: {json}");
    }
    let (types, handler) = match world {
        World::P2 => ("wasi:http/types@0.2.", "wasi:http/incoming-handler@0.2."),
        World::P3 => ("wasi:http/types@0.3.", "wasi:http/handler@0.3."),
    };
    assert!(json["imports"].to_string().contains(types), "{json}");
    assert!(json["exports"].to_string().contains(handler), "{json}");
    assert!(text.contains(types) && text.contains(handler), "{text}");
}

/// wasmtime 48 links wasi 0.2.12 and 0.3.0. A guest built against later packages would still load,
/// up to the day when it uses what they have added.
fn the_house_guests_import_the_versions_that_the_runtime_links(world: World) {
    for name in ["hello", "servlet", "remote", "route", "probe"] {
        let guest = world.guest(name);
        let (code, json, stderr) = run(&["inspect".as_ref(), guest.as_os_str(), "--json".as_ref()]);
        assert_eq!(code, 0, "{stderr}");
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        let imports = json["imports"].as_array().expect("a list");
        let own = match world {
            World::P2 => "wasi:http/types@0.2.12",
            World::P3 => "wasi:http/types@0.3.0",
        };
        assert!(imports.iter().any(|import| import == own), "{name}: {json}");
        for import in imports.iter().map(|import| import.as_str().unwrap()) {
            let patch = import
                .split_once("@0.2.")
                .map(|(_, patch)| patch.parse::<u32>());
            assert!(
                import.starts_with("wasi:")
                    && (import.ends_with("@0.3.0")
                        || patch.is_some_and(|patch| patch.unwrap() <= 12)),
                "{name} imports {import}"
            );
        }
        Host::guest(world, name, &[]);
    }
}

fn the_guest_sees_the_environment_it_was_given_and_no_more(world: World) {
    let host = Host::guest(world, "probe", &["--env", "A=1", "--env", "B=two words=2"]);
    let text = host.get("/env").expect(200).text();
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines.contains(&"A=1") && lines.contains(&"B=two words=2"),
        "{text}"
    );
    assert!(
        !text.contains("AMBIENT_MARK") && !text.contains("PATH="),
        "{text}"
    );
}

fn the_guest_sees_the_directory_it_was_given_and_no_more(world: World) {
    let scratch = Scratch::new("directory", world);
    scratch.file("mark.txt", b"found");
    let given = format!("{}::/data", scratch.path().display());
    let host = Host::guest(world, "probe", &["--dir", &given]);
    assert!(
        host.get("/dir?path=/data/mark.txt")
            .text()
            .contains("found")
    );
    let outside = host
        .get(&format!("/dir?path={}/mark.txt", scratch.path().display()))
        .text();
    assert!(!outside.contains("found"), "{outside}");
    let without = Host::probe(world).get("/dir?path=/data/mark.txt").text();
    assert!(!without.contains("found"), "{without}");
}

fn headers_of_the_command_line_replace_those_of_the_request(world: World) {
    let arguments = ["-H", "X-Given: one", "--header", "x-given: two"];
    let host = Host::guest(world, "probe", &arguments);
    let answer = host
        .ask("GET", "/headers", &["X-Given: sent", "X-Kept: sent"], b"")
        .expect(200);
    let text = answer.text();
    let given: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with("x-given:"))
        .collect();
    assert_eq!(given, ["x-given: one", "x-given: two"]);
    assert!(text.contains("x-kept: sent"));
}

fn the_guests_output_carries_a_prefix(world: World) {
    let host = Host::probe(world);
    host.get("/log?stdout=spoken&stderr=whispered").expect(200);
    let spoken = host.process.stdout.wait_for(&["spoken"]);
    assert!(
        spoken.starts_with("stdout [") && spoken.ends_with("] :: spoken"),
        "{spoken:?}"
    );
    let whispered = host.log().wait_for(&["whispered"]);
    assert!(whispered.starts_with("stderr [") && whispered.ends_with("] :: whispered"));
}

fn the_guests_output_carries_no_prefix_when_told_so(world: World) {
    let host = Host::guest(world, "probe", &["--no-logging-prefix"]);
    host.get("/log?stdout=spoken&stderr=whispered").expect(200);
    assert_eq!(host.process.stdout.wait_for(&["spoken"]), "spoken");
    assert_eq!(host.log().wait_for(&["whispered"]), "whispered");
}

fn sockets_are_closed_unless_asked_for(world: World) {
    let origin = Origin::silent();
    let target = format!("/socket?addr={}", origin.addr);
    let _ = Host::probe(world).get(&target).status();
    assert_eq!(
        origin.record().connections,
        0,
        "a socket was open without being asked for"
    );

    let open = Host::guest(world, "probe", &["-S", "inherit-network"]);
    let _client = open.send("GET", &target, &[], b"");
    origin.wait(|record| record.connections == 1);

    let arguments = ["-S", "inherit-network", "--egress", "http://127.0.0.2:1"];
    let _ = Host::guest(world, "probe", &arguments)
        .get(&target)
        .status();
    assert_eq!(
        origin.record().connections,
        1,
        "a socket went round the egress rules"
    );
}

fn scripts_for_wasmtime_serve_run(world: World) {
    let arguments = [
        "-S",
        "cli",
        "-S",
        "p3,config,config-var=a=b,keyvalue,keyvalue-in-memory-data=k=v",
        "-S",
        "http-outgoing-body-buffer-chunks=4,http-outgoing-body-chunk-size=4096",
        "-W",
        "timeout=20s,max-memory-size=100000000",
        "-O",
        "pooling-allocator=y,pooling-total-memories=64",
        "--max-instance-reuse-count",
        "4",
        "--max-instance-concurrent-reuse-count",
        "2",
        "--idle-instance-timeout",
        "500ms",
        "--max-concurrent-requests",
        "20",
        "--max-concurrent-connections",
        "20",
    ];
    let host = Host::guest(world, "probe", &arguments);
    for _ in 0..10 {
        assert_eq!(host.get("/hello").expect(200).text(), "probe\n");
    }
    let fuelled = Host::guest(world, "probe", &["-W", "fuel=200000000"]);
    fuelled.get("/hello").expect(200);
    fuelled.get("/spin?ms=20000").expect(500);
}

fn an_instance_serves_as_often_as_told(world: World) {
    let counts = |arguments: &[&str]| -> Vec<u32> {
        let host = Host::guest(world, "probe", arguments);
        let mut wire = host.connect();
        let one = |_| {
            wire.send(&request("GET", "/counter", &[], b""));
            wire.answer("GET")
                .expect(200)
                .text()
                .trim()
                .parse()
                .expect("a number")
        };
        (0..12).map(one).collect()
    };
    let fresh = counts(&["--max-instance-reuse-count", "1"]);
    let first = fresh[0];
    assert!(fresh.iter().all(|count| *count == first), "{fresh:?}");
    if world == World::P2 {
        assert_eq!(counts(&[]), fresh, "p2 instances are fresh by default");
    }
    // A request may come before the instance of the one before is free again.
    let reused = counts(&["--max-instance-reuse-count", "3"]);
    assert!(
        reused
            .iter()
            .all(|count| (first..first + 3).contains(count)),
        "{reused:?}"
    );
    assert!(reused.iter().any(|count| *count > first), "{reused:?}");
}

fn requests_over_the_limit_wait_in_a_bounded_queue(world: World) {
    let origin = Origin::answering_when_released(&answer("200 OK", &[], "served"));
    let arguments = ["--max-concurrent-requests", "2", "--request-queue", "1"];
    let host = Host::guest(world, "probe", &arguments);
    let target = call(&origin.url("/"));
    let mut served: Vec<_> = (0..2)
        .map(|_| host.send("GET", &target, &[], b""))
        .collect();
    origin.wait(|record| record.requests.len() == 2);

    // Of the next two, one waits and the other is turned away, whichever comes first.
    let mut over = [
        host.send("GET", &target, &[], b""),
        host.send("GET", &target, &[], b""),
    ];
    let deadline = Instant::now() + crate::harness::PATIENCE;
    while over.iter().all(|client| client.is_silent()) {
        assert!(Instant::now() < deadline, "nobody is turned away");
        thread::sleep(Duration::from_millis(5));
    }
    let [one, other] = &mut over;
    let (refused, waiting) = if one.is_silent() {
        (other, one)
    } else {
        (one, other)
    };
    let refusal: Answer = refused.answer("GET").expect(503);
    let retry: u32 = refusal
        .head
        .field("retry-after")
        .expect("retry-after")
        .parse()
        .unwrap();
    assert!(retry > 0);
    assert!(waiting.is_silent());

    origin.release();
    for client in &mut served {
        client.answer("GET").expect(200);
    }
    assert_eq!(waiting.answer("GET").expect(200).text(), "served");
    assert_eq!(origin.record().requests.len(), 3);
}

fn connections_over_the_limit_are_not_accepted(world: World) {
    let host = Host::guest(world, "probe", &["--max-concurrent-connections", "2"]);
    let mut accepted: Vec<_> = (0..2)
        .map(|_| host.send("GET", "/hello", &[], b""))
        .collect();
    for client in &mut accepted {
        client.answer("GET").expect(200);
    }
    let mut third = host.send("GET", "/hello", &[], b"");
    accepted[0].send(&request("GET", "/sleep?ms=200", &[], b""));
    accepted[0].answer("GET").expect(200);
    assert!(third.is_silent(), "a third connection was served");
    accepted.pop();
    assert_eq!(third.answer("GET").expect(200).text(), "probe\n");
}

fn a_deadline_is_a_504(world: World) {
    let host = Host::guest(world, "probe", &["-W", "timeout=400ms"]);
    for target in ["/sleep?ms=600000", "/never", "/spin?ms=600000"] {
        let answer = host.get(target).expect(504);
        let id = answer.head.field("x-request-id").expect("x-request-id");
        assert!(answer.text().contains(id), "{target}: {}", answer.text());
        host.log().wait_for(&[id, &world.app("probe")]);
    }
    host.get("/hello").expect(200);
}

fn computing_for_too_long_is_a_503(world: World) {
    let host = Host::guest(world, "probe", &["--cpu-timeout", "300ms"]);
    let answer = host.get("/spin").expect(503);
    assert!(
        answer.text().contains("computed for too long"),
        "{}",
        answer.text()
    );
    host.log().wait_for(&["cpu-limit", &world.app("probe")]);
    // Waiting is not computing.
    host.get("/sleep?ms=600").expect(200);
    host.get("/spin?ms=50").expect(200);
}

/// Sixteen guests compute for as long as they may, all at once. Meanwhile requests of others are
/// answered one after the other, many more than those guests could let in between their turns.
fn guests_that_compute_leave_a_core_to_others(world: World) {
    let host = Host::guest(world, "probe", &["--cpu-timeout", "300ms"]);
    let spinning: Vec<_> = (0..16)
        .map(|_| host.send("GET", "/spin", &[], b""))
        .collect();
    for _ in 0..100 {
        host.get("/hello").expect(200);
    }
    for mut client in spinning {
        client.answer("GET").expect(503);
    }
}

fn memory_over_its_limit_is_refused(world: World) {
    let host = Host::guest(world, "probe", &["-W", "max-memory-size=20971520"]);
    host.get("/allocate?bytes=1000000").expect(200);
    // The guest is told, and says so.
    host.get("/allocate?bytes=50000000").expect(507);
    let limits = "max-memory-size=20971520,trap-on-grow-failure=y";
    let strict = Host::guest(world, "probe", &["-W", limits]);
    strict.get("/allocate?bytes=1000000").expect(200);
    strict.get("/allocate?bytes=50000000").expect(500);
    strict.get("/hello").expect(200);
}

fn compiled_code_goes_where_a_link_points(world: World) {
    let scratch = Scratch::new("compile-link", world);
    let target = scratch.file("target.cwasm", b"old");
    let link = scratch.path().join("link.cwasm");
    std::os::unix::fs::symlink(&target, &link).unwrap();
    let guest = world.guest("hello");
    let compile: [&OsStr; 4] = [
        "compile".as_ref(),
        guest.as_ref(),
        "-o".as_ref(),
        link.as_ref(),
    ];
    let (code, _, stderr) = run(&compile);
    assert_eq!(code, 0, "{stderr}");
    assert!(link.symlink_metadata().unwrap().is_symlink());
    assert!(std::fs::metadata(&target).unwrap().len() > 1000);
}
