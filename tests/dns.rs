//! A DNS server that knows a few names below `test`, over UDP.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread;

const NOERROR: u8 = 0;
const SERVFAIL: u8 = 2;
const NXDOMAIN: u8 = 3;

const A: u16 = 1;
const AAAA: u16 = 28;

/// Names and addresses; `silent.test` gets no answer, `broken.test` SERVFAIL, all others NXDOMAIN.
const NAMES: [(&str, &[&str]); 7] = [
    ("up.test", &["127.0.0.1"]),
    ("dual.test", &["127.0.0.1", "::1"]),
    ("mapped.test", &["::ffff:127.0.0.1"]),
    ("private.test", &["10.0.0.1", "fd00::1"]),
    ("metadata.test", &["169.254.169.254"]),
    ("translated.test", &["64:ff9b::7f00:1"]),
    ("empty.test", &[]),
];

/// Answers until the tests end.
pub struct Dns {
    pub addr: SocketAddr,
    asked: Arc<Mutex<Vec<(String, u16)>>>,
}

impl Dns {
    pub fn start() -> Dns {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let addr = socket.local_addr().unwrap();
        let asked = Arc::<Mutex<Vec<_>>>::default();
        let record = asked.clone();
        thread::spawn(move || {
            let mut buffer = [0; 1500];
            while let Ok((count, peer)) = socket.recv_from(&mut buffer) {
                let (name, kind, question) = question(&buffer[..count]);
                record.lock().unwrap().push((name.clone(), kind));
                if name != "silent.test" {
                    let reply = reply(&buffer[..2], &name, kind, question);
                    socket.send_to(&reply, peer).unwrap();
                }
            }
        });
        Dns { addr, asked }
    }

    /// How often the addresses of a name were asked for, IPv4 alone.
    pub fn times_asked(&self, name: &str) -> usize {
        let asked = self.asked.lock().unwrap();
        asked
            .iter()
            .filter(|row| row.0 == name && row.1 == A)
            .count()
    }

    pub fn flag(&self) -> [String; 2] {
        ["--dns-server".into(), self.addr.to_string()]
    }
}

/// RFC 1035 section 4.1.2, the only question of a query.
fn question(query: &[u8]) -> (String, u16, &[u8]) {
    let mut at = 12;
    let mut labels = Vec::new();
    while query[at] != 0 {
        let end = at + 1 + usize::from(query[at]);
        labels.push(String::from_utf8_lossy(&query[at + 1..end]).to_lowercase());
        at = end;
    }
    let kind = u16::from_be_bytes([query[at + 1], query[at + 2]]);
    (labels.join("."), kind, &query[12..at + 5])
}

fn reply(id: &[u8], name: &str, kind: u16, question: &[u8]) -> Vec<u8> {
    let known = NAMES.iter().find(|row| row.0 == name);
    let rcode = match known {
        Some(_) => NOERROR,
        None if name == "broken.test" => SERVFAIL,
        None => NXDOMAIN,
    };
    let addresses = known.map_or(&[][..], |row| row.1).iter();
    let records: Vec<Vec<u8>> = addresses
        .filter_map(|text| match (kind, text.parse().unwrap()) {
            (A, IpAddr::V4(address)) => Some(address.octets().to_vec()),
            (AAAA, IpAddr::V6(address)) => Some(address.octets().to_vec()),
            _ => None,
        })
        .collect();
    // A response, recursion desired and available; one question, no authority.
    let mut reply = [
        id,
        &[0x81, 0x80 | rcode, 0, 1, 0, records.len() as u8, 0, 0, 0, 0],
    ]
    .concat();
    reply.extend_from_slice(question);
    for record in records {
        // The name of the question, class IN, five minutes.
        reply.extend([0xc0, 12]);
        reply.extend(kind.to_be_bytes());
        reply.extend([0, 1, 0, 0, 1, 44, 0, record.len() as u8]);
        reply.extend(record);
    }
    reply
}

#[test]
fn a_query_is_read_and_answered() {
    let query = b"\x12\x34\x01\x00\0\x01\0\0\0\0\0\0\x02Up\x04test\0\0\x01\0\x01";
    let (name, kind, rest) = question(query);
    assert_eq!((name.as_str(), kind, rest.len()), ("up.test", A, 13));
    let reply = reply(&query[..2], &name, kind, rest);
    assert_eq!(reply[..8], [0x12, 0x34, 0x81, 0x80, 0, 1, 0, 1]);
    assert!(reply.ends_with(&[0, 4, 127, 0, 0, 1]));
}
