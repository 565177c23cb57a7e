//! The servers that the host calls: a thread per connection, raw bytes, scripted answers.

use crate::harness::PATIENCE;
use crate::wire::{End, Head, Wire, chunk};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

/// A request as an origin received it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub head: Head,
    pub body: Vec<u8>,
    pub trailers: Vec<(String, String)>,
    pub end: End,
}

/// What an origin has lived through so far.
#[derive(Clone, Default)]
pub struct Record {
    pub connections: usize,
    /// Connections that the other side has closed, as scripts noticed.
    pub closed: usize,
    /// Heads, in order of arrival; `requests` holds those whose body has been read too.
    pub heads: Vec<Head>,
    pub requests: Vec<Seen>,
    released: bool,
}

#[derive(Default)]
struct Shared {
    record: Mutex<Record>,
    changed: Condvar,
    stopped: AtomicBool,
}

impl Shared {
    fn update(&self, change: impl FnOnce(&mut Record)) {
        change(&mut self.record.lock().unwrap());
        self.changed.notify_all();
    }

    #[track_caller]
    fn wait(&self, until: impl Fn(&Record) -> bool) -> Record {
        let record = self.record.lock().unwrap();
        let (record, timeout) = self
            .changed
            .wait_timeout_while(record, PATIENCE, |record| !until(record))
            .unwrap();
        let copy = record.clone();
        drop(record);
        assert!(
            !timeout.timed_out(),
            "the origin waits in vain: {} connections, {} closed, {} heads, {} requests",
            copy.connections,
            copy.closed,
            copy.heads.len(),
            copy.requests.len()
        );
        copy
    }
}

/// A server on a port of 127.0.0.1; stops accepting on drop.
pub struct Origin {
    pub addr: SocketAddr,
    shared: Arc<Shared>,
}

impl Origin {
    /// Runs the script once per connection.
    pub fn serve(script: impl Fn(&mut Visit) + Send + Sync + 'static) -> Origin {
        Origin::serve_on(TcpListener::bind("127.0.0.1:0").unwrap(), script)
    }

    pub fn serve_on(
        listener: TcpListener,
        script: impl Fn(&mut Visit) + Send + Sync + 'static,
    ) -> Origin {
        let addr = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let script = Arc::new(script);
        let accepting = shared.clone();
        thread::spawn(move || {
            while let Ok((socket, _)) = listener.accept() {
                if accepting.stopped.load(Ordering::Relaxed) {
                    break;
                }
                accepting.update(|record| record.connections += 1);
                let (script, shared) = (script.clone(), accepting.clone());
                let wire = Wire::accepted(socket);
                thread::spawn(move || script(&mut Visit { wire, shared }));
            }
        });
        Origin { addr, shared }
    }

    /// Answers every request with these bytes, on connections that stay open.
    pub fn answering(bytes: &[u8]) -> Origin {
        let bytes = bytes.to_vec();
        Origin::serve(move |visit| {
            while visit.request().is_some() {
                visit.wire.send(&bytes);
            }
            visit.note_close();
        })
    }

    /// Answers one request on each connection with these bytes and closes it.
    pub fn answering_once(bytes: impl Into<Vec<u8>>) -> Origin {
        let bytes = bytes.into();
        Origin::serve(move |visit| {
            if visit.request().is_some() {
                visit.wire.send(&bytes);
            }
        })
    }

    /// Answers once with these bytes, sends no more, and notices the close.
    pub fn stopping_after(bytes: &[u8]) -> Origin {
        let bytes = bytes.to_vec();
        Origin::serve(move |visit| {
            if visit.request().is_some() {
                visit.wire.send(&bytes);
                if visit.wire.at_end() {
                    visit.note_close();
                }
            }
        })
    }

    /// Answers like `answering`, but nothing before [`Origin::release`].
    pub fn answering_when_released(bytes: &[u8]) -> Origin {
        let bytes = bytes.to_vec();
        Origin::serve(move |visit| {
            while visit.request().is_some() {
                visit.wait_for_release();
                // A caller that has left meanwhile is for the test to judge.
                let _ = std::io::Write::write_all(visit.wire.socket(), &bytes);
            }
            visit.note_close();
        })
    }

    /// Reads one request on each connection, never answers, and notices the close.
    pub fn silent() -> Origin {
        Origin::stopping_after(b"")
    }

    /// Sends every request's body back, chunk by chunk, while it arrives.
    pub fn echoing() -> Origin {
        Origin::serve(|visit| {
            while let Some(head) = visit.head() {
                let mut writer = visit.wire.writer();
                writer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
                let framing = head.request_framing();
                let (end, _) = visit
                    .wire
                    .body(framing, &mut |bytes| writer.send_chunk(bytes));
                if end != End::Whole {
                    return visit.note_close();
                }
                writer.send(&chunk(b""));
            }
            visit.note_close();
        })
    }

    pub fn release(&self) {
        self.shared.update(|record| record.released = true);
    }

    pub fn url(&self, target: &str) -> String {
        format!("http://{}{target}", self.addr)
    }

    pub fn record(&self) -> Record {
        self.shared.record.lock().unwrap().clone()
    }

    /// Waits until the record fulfils a condition.
    #[track_caller]
    pub fn wait(&self, until: impl Fn(&Record) -> bool) -> Record {
        self.shared.wait(until)
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.addr);
    }
}

/// One connection to an origin.
pub struct Visit {
    pub wire: Wire<TcpStream>,
    shared: Arc<Shared>,
}

impl Visit {
    /// The next head; none when the connection ends first.
    pub fn head(&mut self) -> Option<Head> {
        let head = self.wire.head()?;
        self.shared.update(|record| record.heads.push(head.clone()));
        Some(head)
    }

    /// The next request with its body; none when the connection ends first.
    pub fn request(&mut self) -> Option<Seen> {
        let head = self.head()?;
        Some(self.body(head))
    }

    /// The body that belongs to a head.
    pub fn body(&mut self, head: Head) -> Seen {
        let mut body = Vec::new();
        let framing = head.request_framing();
        let (end, trailers) = self
            .wire
            .body(framing, &mut |bytes| body.extend_from_slice(bytes));
        let seen = Seen {
            head,
            body,
            trailers,
            end,
        };
        self.shared
            .update(|record| record.requests.push(seen.clone()));
        seen
    }

    /// Waits for [`Origin::release`].
    pub fn wait_for_release(&self) {
        self.shared.wait(|record| record.released);
    }

    pub fn note_close(&self) {
        self.shared.update(|record| record.closed += 1);
    }
}

/// A listener that accepts nothing, and the connections that fill its backlog: it drops what comes
/// next, as a host that is down would.
pub fn full_backlog() -> ((TcpListener, Vec<TcpStream>), SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let patience = Duration::from_millis(500);
    let connect = || TcpStream::connect_timeout(&addr, patience);
    let filling = std::iter::from_fn(|| connect().ok()).take(5000).collect();
    ((listener, filling), addr)
}

/// A port of 127.0.0.1 on which nothing listens.
pub fn closed_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
}

/// A response in bytes, with its content-length.
pub fn answer(status: &str, fields: &[&str], body: &str) -> Vec<u8> {
    let mut head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n", body.len());
    for field in fields {
        head.push_str(&format!("{field}\r\n"));
    }
    format!("{head}\r\n{body}").into_bytes()
}

#[test]
fn an_origin_records_what_it_received_and_answers() {
    let origin = Origin::answering(&answer("200 OK", &["X-A: 1"], "yes"));
    let mut wire = Wire::connect(origin.addr);
    for body in [&b"one"[..], b"two"] {
        wire.send(&crate::wire::request("POST", "/x?y", &[], body));
        let answer = wire.answer("POST").expect(200);
        assert_eq!(
            (answer.text().as_str(), answer.head.field("x-a")),
            ("yes", Some("1"))
        );
    }
    drop(wire);
    let record = origin.wait(|record| record.closed == 1);
    assert_eq!((record.connections, record.requests.len()), (1, 2));
    assert_eq!(record.requests[1].head.start, "POST /x?y HTTP/1.1");
    assert_eq!(record.requests[1].body, b"two");
}

#[test]
fn an_echoing_origin_streams() {
    let origin = Origin::echoing();
    let mut wire = Wire::connect(origin.addr);
    wire.send(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    assert_eq!(wire.head().unwrap().status(), 200);
    for part in [&b"first"[..], b"second"] {
        wire.send_chunk(part);
        assert_eq!(wire.chunked_bytes(part.len()), part);
    }
    wire.send_chunk(b"");
    assert_eq!(wire.chunk().unwrap(), b"");
}

#[test]
fn a_held_origin_answers_after_its_release() {
    let origin = Origin::answering_when_released(&answer("200 OK", &[], ""));
    let mut wire = Wire::connect(origin.addr);
    wire.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    origin.wait(|record| record.requests.len() == 1);
    assert!(wire.is_silent());
    origin.release();
    assert!(wire.head().is_some());
}
