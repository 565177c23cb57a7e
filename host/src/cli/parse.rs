//! From what can be typed to values that cannot be wrong. Errors name the flag
//! where clap does not.

use crate::outgoing::destination::Destination;
use crate::outgoing::tls::ClientCertificate;
use anyhow::{Context as _, ensure};
use http::{HeaderName, HeaderValue};
use std::path::PathBuf;
use std::time::Duration;

/// What of our own environment is text; guests can have no other.
pub fn inherited_env() -> impl Iterator<Item = (String, String)> {
    let pairs = std::env::vars_os();
    pairs.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

pub fn parse_env(value: &str) -> anyhow::Result<Option<(String, String)>> {
    let (name, value) = match value.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (value, std::env::var(value).ok()),
    };
    ensure!(
        !name.is_empty(),
        "--env ={} names no variable",
        value.unwrap_or_default()
    );
    Ok(value.map(|value| (name.to_owned(), value)))
}

pub fn parse_dir(value: &str) -> anyhow::Result<(PathBuf, String)> {
    let (host, guest) = value.split_once("::").unwrap_or((value, value));
    let metadata = std::fs::metadata(host).with_context(|| format!("--dir {value}"))?;
    ensure!(
        metadata.is_dir(),
        "--dir {value}: {host} is not a directory"
    );
    Ok((host.into(), guest.to_owned()))
}

pub fn parse_headers(values: &[String]) -> anyhow::Result<Vec<(HeaderName, HeaderValue)>> {
    let mut headers = Vec::new();
    for value in values {
        match value.strip_prefix('@') {
            None => headers.push(parse_header(value)?),
            Some(file) => {
                let text =
                    std::fs::read_to_string(file).with_context(|| format!("--header @{file}"))?;
                for line in text.lines().filter(|line| !line.trim().is_empty()) {
                    headers.push(parse_header(line)?);
                }
            }
        }
    }
    Ok(headers)
}

pub fn parse_header(text: &str) -> anyhow::Result<(HeaderName, HeaderValue)> {
    let parse = || {
        let (name, value) = text.split_once(':')?;
        Some((name.trim().parse().ok()?, value.trim().parse().ok()?))
    };
    parse().with_context(|| format!("--header \"{text}\" is not of the form NAME: VALUE"))
}

/// A URL without a path.
pub fn parse_destination(url: &str) -> Result<Destination, String> {
    let (scheme, authority) = url
        .split_once("://")
        .ok_or("is not of the form http://HOST:PORT")?;
    let authority = authority.strip_suffix('/').unwrap_or(authority);
    Destination::parse(scheme, authority).map_err(|bad| bad.to_string())
}

pub fn parse_client_certificate(text: &str) -> Result<ClientCertificate, String> {
    let form = "is not of the form https://HOST=CERT.pem,KEY.pem";
    let (url, files) = text.split_once('=').ok_or(form)?;
    let (certificates, key) = files.split_once(',').ok_or(form)?;
    Ok(ClientCertificate {
        destination: parse_destination(url)?,
        certificates: certificates.into(),
        key: key.into(),
    })
}

pub fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".into()),
        Ok(n) => Ok(n),
        Err(error) => Err(format!("{error}")),
    }
}

/// What hyper reads at once, it has to hold.
pub fn at_least_8_kib(text: &str) -> Result<usize, String> {
    match at_least_one(text)? {
        0..8192 => Err("must be at least 8192".into()),
        bytes => Ok(bytes),
    }
}

/// A number of seconds, or with one of the suffixes s, ms, us, μs, ns.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number = number
        .parse()
        .map_err(|_| "begins with no number".to_owned())?;
    match unit {
        "" | "s" => Ok(Duration::from_secs(number)),
        "ms" => Ok(Duration::from_millis(number)),
        "us" | "μs" => Ok(Duration::from_micros(number)),
        "ns" => Ok(Duration::from_nanos(number)),
        _ => Err(format!("\"{unit}\" is none of s, ms, us, ns")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_the_suffixes_of_wasmtime() {
        for (text, duration) in [
            ("3", Ok(Duration::from_secs(3))),
            ("3s", Ok(Duration::from_secs(3))),
            ("250ms", Ok(Duration::from_millis(250))),
            ("7us", Ok(Duration::from_micros(7))),
            ("9ns", Ok(Duration::from_nanos(9))),
        ] {
            assert_eq!(parse_duration(text), duration, "{text}");
        }
        for text in ["", "s", "-1s", "1h", "1 s"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
