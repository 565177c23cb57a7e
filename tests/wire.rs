//! A raw HTTP/1.1 peer over a blocking socket, with a decoder of its own, so that no mistake of
//! the server's HTTP library is shared by its tests.
//!
//! Whether a message ended as its framing says is part of what is read: see [`End`].

use crate::harness::PATIENCE;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

/// How a message body ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// As its framing says.
    Whole,
    /// The connection broke before the end that the framing announced.
    Cut,
    /// Nothing but the end of the connection marks the end.
    Closed,
}

/// A start line and header fields, as received.
#[derive(Clone, Debug)]
pub struct Head {
    pub start: String,
    fields: Vec<(String, String)>,
}

impl Head {
    /// Every value of a field, in order.
    pub fn all(&self, name: &str) -> Vec<&str> {
        values(&self.fields, name)
    }

    /// The value of a field that may occur once.
    pub fn field(&self, name: &str) -> Option<&str> {
        let all = self.all(name);
        assert!(all.len() < 2, "{name} occurs {} times: {self:?}", all.len());
        all.first().copied()
    }

    pub fn status(&self) -> u16 {
        let rest = self
            .start
            .strip_prefix("HTTP/1.1 ")
            .or(self.start.strip_prefix("HTTP/1.0 "));
        let code = rest
            .and_then(|rest| rest.get(..3))
            .and_then(|code| code.parse().ok());
        code.unwrap_or_else(|| panic!("not a status line: {:?}", self.start))
    }

    /// What names and values amount to.
    pub fn bytes(&self) -> usize {
        self.fields
            .iter()
            .map(|(name, value)| name.len() + value.len())
            .sum()
    }

    fn framing(&self, without: Framing) -> Framing {
        match (
            self.field("transfer-encoding"),
            self.field("content-length"),
        ) {
            (Some(_), Some(_)) => panic!("both transfer-encoding and content-length: {self:?}"),
            (Some("chunked"), None) => Framing::Chunked,
            (Some(other), None) => panic!("transfer-encoding is {other:?}"),
            (None, Some(length)) => Framing::Length(length.parse().expect("a content-length")),
            (None, None) => without,
        }
    }

    /// The framing of the response to a request of that method.
    pub fn answer_framing(&self, method: &str) -> Framing {
        let framing = self.framing(Framing::UntilClose);
        match self.status() {
            204 if framing != Framing::UntilClose => panic!("a 204 with a length: {self:?}"),
            204 | 304 => Framing::Empty,
            _ if method == "HEAD" => Framing::Empty,
            _ => framing,
        }
    }

    pub fn request_framing(&self) -> Framing {
        self.framing(Framing::Empty)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    Empty,
    Length(u64),
    Chunked,
    UntilClose,
}

/// A whole response.
#[derive(Debug)]
pub struct Answer {
    pub head: Head,
    /// The 1xx statuses that came before it.
    pub interim: Vec<u16>,
    pub body: Vec<u8>,
    trailers: Vec<(String, String)>,
    pub end: End,
}

impl Answer {
    pub fn status(&self) -> u16 {
        self.head.status()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn trailer(&self, name: &str) -> Option<&str> {
        values(&self.trailers, name).first().copied()
    }

    pub fn has_trailers(&self) -> bool {
        !self.trailers.is_empty()
    }

    /// Asserts the status, and that the body ended as its framing says.
    #[track_caller]
    pub fn expect(self, status: u16) -> Answer {
        assert_eq!(
            (self.status(), self.end),
            (status, End::Whole),
            "body: {}",
            self.text()
        );
        self
    }
}

/// One end of a connection.
pub struct Wire<S> {
    socket: S,
    unread: Vec<u8>,
    start: usize,
}

impl Wire<TcpStream> {
    pub fn connect(addr: SocketAddr) -> Wire<TcpStream> {
        Wire::accepted(TcpStream::connect_timeout(&addr, PATIENCE).expect("a connection"))
    }

    pub fn accepted(socket: TcpStream) -> Wire<TcpStream> {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_write_timeout(Some(PATIENCE)).unwrap();
        socket.set_nodelay(true).unwrap();
        Wire::new(socket)
    }

    /// Sends all the bytes; the peer is there.
    pub fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).expect("the peer reads");
    }

    pub fn send_chunk(&mut self, bytes: &[u8]) {
        self.send(&chunk(bytes));
    }

    /// Ends the sending direction only.
    pub fn finish_sending(&mut self) {
        self.socket.shutdown(Shutdown::Write).unwrap();
    }

    pub fn socket(&mut self) -> &mut TcpStream {
        &mut self.socket
    }

    /// Another handle for writing.
    pub fn writer(&self) -> Wire<TcpStream> {
        Wire::new(self.socket.try_clone().unwrap())
    }

    /// True when nothing has arrived that was not read yet.
    pub fn is_silent(&self) -> bool {
        self.socket.set_nonblocking(true).unwrap();
        let peeked = self.socket.peek(&mut [0]);
        self.socket.set_nonblocking(false).unwrap();
        self.start == self.unread.len()
            && peeked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }
}

impl<S: Read> Wire<S> {
    pub fn new(socket: S) -> Wire<S> {
        Wire {
            socket,
            unread: Vec::new(),
            start: 0,
        }
    }

    /// Reads what comes next; false when the connection has ended.
    fn fill(&mut self) -> bool {
        if self.start == self.unread.len() {
            self.unread.clear();
            self.start = 0;
        }
        let end = self.unread.len();
        self.unread.resize(end + 64 * 1024, 0);
        let read = self.socket.read(&mut self.unread[end..]);
        self.unread.truncate(end + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(count) => count > 0,
            Err(error) if error.kind() == ErrorKind::Interrupted => true,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("no byte within {PATIENCE:?}")
            }
            Err(_) => false,
        }
    }

    /// True when the connection ends here, without another byte.
    pub fn at_end(&mut self) -> bool {
        self.start == self.unread.len() && !self.fill()
    }

    fn line(&mut self) -> Option<String> {
        loop {
            let unread = &self.unread[self.start..];
            if let Some(length) = unread.iter().position(|byte| *byte == b'\n') {
                let line = unread[..length]
                    .strip_suffix(b"\r")
                    .expect("a line ends in CRLF");
                let line = line.iter().map(|byte| *byte as char).collect();
                self.start += length + 1;
                return Some(line);
            }
            if !self.fill() {
                return None;
            }
        }
    }

    fn fields(&mut self) -> Option<Vec<(String, String)>> {
        let mut fields = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Some(fields);
            }
            let (name, value) = line.split_once(':').expect("a field has a colon");
            assert!(
                !name.is_empty() && !name.contains(' '),
                "field name {name:?}"
            );
            fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }

    /// The next head of any kind, 1xx included; none when the connection ends before.
    pub fn head(&mut self) -> Option<Head> {
        Some(Head {
            start: self.line()?,
            fields: self.fields()?,
        })
    }

    /// Passes on what has arrived, at most `limit` bytes of it; false when the connection ended.
    fn some(&mut self, limit: u64, sink: &mut dyn FnMut(&[u8])) -> Option<u64> {
        if self.at_end() {
            return None;
        }
        let unread = &self.unread[self.start..];
        let count = usize::try_from(limit)
            .unwrap_or(usize::MAX)
            .min(unread.len());
        sink(&unread[..count]);
        self.start += count;
        Some(count as u64)
    }

    fn exactly(&mut self, length: u64, sink: &mut dyn FnMut(&[u8])) -> End {
        let mut left = length;
        while left > 0 {
            match self.some(left, sink) {
                Some(count) => left -= count,
                None => return End::Cut,
            }
        }
        End::Whole
    }

    /// The next chunk of a chunked body; empty for the last one; none when the connection broke.
    pub fn chunk(&mut self) -> Option<Vec<u8>> {
        let mut chunk = Vec::new();
        self.chunk_into(&mut |bytes| chunk.extend_from_slice(bytes))?;
        Some(chunk)
    }

    fn chunk_into(&mut self, sink: &mut dyn FnMut(&[u8])) -> Option<u64> {
        let line = self.line()?;
        let size = line.split(';').next().unwrap();
        assert!(
            !size.is_empty() && size.bytes().all(|b| b.is_ascii_hexdigit()),
            "chunk {line:?}"
        );
        let size = u64::from_str_radix(size, 16).expect("a chunk size");
        if size > 0 {
            if self.exactly(size, sink) == End::Cut {
                return None;
            }
            assert_eq!(self.line()?, "", "a chunk is longer than its size");
        }
        Some(size)
    }

    /// Reads a body to its end, piece by piece, and its trailers.
    pub fn body(
        &mut self,
        framing: Framing,
        sink: &mut dyn FnMut(&[u8]),
    ) -> (End, Vec<(String, String)>) {
        let end = match framing {
            Framing::Empty => End::Whole,
            Framing::Length(length) => self.exactly(length, sink),
            Framing::UntilClose => {
                while self.some(u64::MAX, sink).is_some() {}
                End::Closed
            }
            Framing::Chunked => loop {
                match self.chunk_into(sink) {
                    None => break End::Cut,
                    Some(0) => match self.fields() {
                        Some(trailers) => return (End::Whole, trailers),
                        None => break End::Cut,
                    },
                    Some(_) => {}
                }
            },
        };
        (end, Vec::new())
    }

    /// The final response to a request of that method. Panics when the connection ends before.
    #[track_caller]
    pub fn answer(&mut self, method: &str) -> Answer {
        self.try_answer(method)
            .expect("an answer before the connection ends")
    }

    pub fn try_answer(&mut self, method: &str) -> Option<Answer> {
        let mut interim = Vec::new();
        let head = loop {
            let head = self.head()?;
            match head.status() {
                status @ 100..200 => interim.push(status),
                _ => break head,
            }
        };
        let mut body = Vec::new();
        let framing = head.answer_framing(method);
        let (end, trailers) = self.body(framing, &mut |bytes| body.extend_from_slice(bytes));
        Some(Answer {
            head,
            interim,
            body,
            trailers,
            end,
        })
    }

    /// The next `length` bytes of a chunked body, however they are cut into chunks.
    pub fn chunked_bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while bytes.len() < length {
            let chunk = self.chunk().expect("the connection lasts");
            assert!(
                !chunk.is_empty(),
                "the body ended after {} bytes",
                bytes.len()
            );
            bytes.extend(chunk);
        }
        bytes
    }
}

/// A request in bytes. A body goes with its content-length unless a field says otherwise.
pub fn request(method: &str, target: &str, fields: &[&str], body: &[u8]) -> Vec<u8> {
    let mut head = format!("{method} {target} HTTP/1.1\r\n");
    let has = |name: &str| {
        fields
            .iter()
            .any(|field| field.to_ascii_lowercase().starts_with(name))
    };
    if !has("host:") {
        head.push_str("Host: test.example\r\n");
    }
    if !body.is_empty() && !has("transfer-encoding:") && !has("content-length:") {
        head.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    for field in fields {
        head.push_str(&format!("{field}\r\n"));
    }
    head.push_str("\r\n");
    [head.as_bytes(), body].concat()
}

/// One chunk in bytes; the last one, without trailers, when it is empty.
pub fn chunk(bytes: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

fn values<'a>(fields: &'a [(String, String)], name: &str) -> Vec<&'a str> {
    fields
        .iter()
        .filter(|field| field.0 == name)
        .map(|field| field.1.as_str())
        .collect()
}

/// One byte per read, the worst that a network does.
struct Dribble(&'static [u8]);

impl Read for Dribble {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = buffer.len().min(1);
        self.0.read(&mut buffer[..count])
    }
}

fn read_answer(method: &str, bytes: &'static [u8]) -> Answer {
    let slow = Wire::new(Dribble(bytes)).answer(method);
    let fast = Wire::new(bytes).answer(method);
    assert_eq!(format!("{slow:?}"), format!("{fast:?}"));
    fast
}

#[test]
fn the_wire_tells_a_whole_message_from_a_cut_one() {
    let table: &[(&'static [u8], &[u8], End)] = &[
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", b"abc", End::Whole),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc", b"abc", End::Cut),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabc", b"ab", End::Whole),
        (b"HTTP/1.1 200 OK\r\n\r\nabc", b"abc", End::Closed),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2;x=y\r\nbc\r\n0\r\n\r\n",
            b"abc",
            End::Whole,
        ),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", b"abc", End::Cut),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc", b"abc", End::Cut),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"", End::Cut),
        (b"HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", b"", End::Whole),
    ];
    for (bytes, body, end) in table {
        let answer = read_answer("GET", bytes);
        assert_eq!(
            (&answer.body[..], answer.end),
            (*body, *end),
            "{:?}",
            answer.head
        );
    }
}

#[test]
fn the_wire_reads_fields_trailers_and_what_follows() {
    let bytes = b"HTTP/1.1 200 OK\r\nX-A: 1\r\nx-a: 2\r\nTransfer-Encoding: chunked\r\n\r\n\
        0\r\nX-Sum: 7\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n";
    let mut wire = Wire::new(Dribble(bytes));
    let first = wire.answer("GET");
    assert_eq!(first.head.all("x-a"), ["1", "2"]);
    assert_eq!((first.trailer("x-sum"), first.end), (Some("7"), End::Whole));
    assert_eq!(wire.answer("GET").status(), 204);
    assert!(wire.at_end() && wire.try_answer("GET").is_none());
}

#[test]
#[should_panic(expected = "both transfer-encoding and content-length")]
fn the_wire_refuses_two_framings() {
    read_answer(
        "GET",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    );
}
