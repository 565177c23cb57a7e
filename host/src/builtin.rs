//! The house guests, built into the binary, so that `host` is one file to copy.

macro_rules! guests {
    ($($name:literal => $file:literal),* $(,)?) => {
        /// Name and bytes of every house guest. A name without a suffix is the
        /// guest for wasi:http 0.3; `-p2` is the same one for 0.2.
        pub const GUESTS: &[(&str, &[u8])] = &[
            $(($name, include_bytes!(concat!(env!("OUT_DIR"), "/guests/", $file, ".wasm")))),*
        ];
    };
}

guests! {
    "servlet" => "servlet-p3",
    "servlet-p2" => "servlet-p2",
    "remote" => "remote-p3",
    "remote-p2" => "remote-p2",
    "hello" => "hello-p3",
    "hello-p2" => "hello-p2",
}

pub fn find(name: &str) -> Option<(&'static str, &'static [u8])> {
    GUESTS.iter().find(|(known, _)| *known == name).copied()
}
