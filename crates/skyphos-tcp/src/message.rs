//! Messages of the bring-up, and their encoding.
//!
//! A message is its length (u32: kind and body), its kind (u8) and its body; numbers are little-endian. A malformed body decodes to
//! `None`, and the link drops the connection before it reads more than its limit.

use crate::handshake::{GroupId, Key, Nonce, PROOF_BYTES, Side};
use skyphos_core::host::NAME_BYTES;
use std::net::{IpAddr, SocketAddr};

/// First bytes of a server's challenge.
const MAGIC: [u8; 7] = *b"SKYPHOS";

/// Version of the bring-up's messages.
pub(crate) const PROTOCOL: u8 = 3;

/// Longest message from a peer that has not proved the token: the largest hello.
pub(crate) const STRANGER_BYTES: usize = 1024;

/// Longest message from a rank of the group: a table of 50,000 ranks.
pub(crate) const MEMBER_BYTES: usize = 16 << 20;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// The server's nonce.
    Challenge = 1,
    /// The client's introduction and proof.
    Hello = 2,
    /// The server's proof: the client is accepted.
    Welcome = 3,
    /// From rank 0: the table of all ranks' addresses.
    Table = 4,
    /// To rank 0: the sender is connected to all others.
    Ready = 5,
    /// To rank 0: the sender cannot connect; the body is the error.
    Failed = 6,
    /// From rank 0: all are connected; frames follow.
    Go = 7,
    /// The group has failed, or refuses the receiver; the body is the error.
    Refusal = 8,
}

impl Kind {
    fn from_code(code: u8) -> Option<Kind> {
        use Kind::*;
        [Challenge, Hello, Welcome, Table, Ready, Failed, Go, Refusal].into_iter().find(|k| *k as u8 == code)
    }
}

/// A message as it crosses a link.
#[derive(Debug, PartialEq)]
pub(crate) struct Message {
    pub(crate) kind: Kind,
    pub(crate) body: Vec<u8>,
}

impl Message {
    /// Appends length, kind and body.
    pub(crate) fn put(kind: Kind, body: &[u8], out: &mut Vec<u8>) {
        out.extend((body.len() as u32 + 1).to_le_bytes());
        out.push(kind as u8);
        out.extend(body);
    }

    /// The length that the first four bytes announce; `None` if it is 0 or exceeds `limit`.
    pub(crate) fn length(head: [u8; 4], limit: usize) -> Option<usize> {
        let len = u32::from_le_bytes(head) as usize;
        (1..=limit).contains(&len).then_some(len)
    }

    /// The message in the bytes after the length.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Message> {
        let (code, body) = bytes.split_first()?;
        Some(Message { kind: Kind::from_code(*code)?, body: body.to_vec() })
    }
}

/// Reads the fields of a body, front to back.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(len)?;
        self.0 = tail;
        Some(head)
    }
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }
    fn u8(&mut self) -> Option<u8> {
        Some(self.bytes(1)?[0])
    }
    fn bool(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.array()?))
    }
    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.array()?))
    }
    fn text(&mut self) -> Option<String> {
        let len = self.u8()? as usize;
        String::from_utf8(self.bytes(len)?.to_vec()).ok()
    }
    fn address(&mut self) -> Option<SocketAddr> {
        let ip: IpAddr = match self.u8()? {
            4 => self.array::<4>()?.into(),
            6 => self.array::<16>()?.into(),
            _ => return None,
        };
        Some(SocketAddr::new(ip, u16::from_le_bytes(self.array()?)))
    }
    fn end<T>(self, value: T) -> Option<T> {
        self.0.is_empty().then_some(value)
    }
}

fn put_text(text: &str, out: &mut Vec<u8>) {
    debug_assert!(text.len() <= NAME_BYTES);
    out.push(text.len() as u8);
    out.extend(text.as_bytes());
}

fn put_address(address: SocketAddr, out: &mut Vec<u8>) {
    match address.ip() {
        IpAddr::V4(ip) => {
            out.push(4);
            out.extend(ip.octets());
        }
        IpAddr::V6(ip) => {
            out.push(6);
            out.extend(ip.octets());
        }
    }
    out.extend(address.port().to_le_bytes());
}

/// A server's challenge.
pub(crate) fn challenge(nonce: &Nonce) -> Vec<u8> {
    [&MAGIC[..], &[PROTOCOL], nonce].concat()
}

/// Whether a server's first bytes are the beginning of an unencrypted challenge.
pub(crate) fn begins_challenge(bytes: &[u8]) -> bool {
    bytes.get(4) == Some(&(Kind::Challenge as u8)) && bytes[5..].starts_with(&MAGIC)
}

/// The protocol and the nonce of a challenge.
pub(crate) fn read_challenge(body: &[u8]) -> Option<(u8, Nonce)> {
    let mut fields = Fields(body);
    (fields.array()? == MAGIC).then_some(())?;
    let both = (fields.u8()?, fields.array()?);
    fields.end(both)
}

/// The purpose of a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Role {
    /// Registration in rank 0's table.
    Register = 1,
    /// The mesh connection between the two ranks.
    Mesh = 2,
}

/// A rank's details for rank 0.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Details {
    /// Milliseconds until the client gives up.
    pub(crate) left_ms: u64,
    pub(crate) pid: u32,
    /// The address at which it accepts mesh connections.
    pub(crate) mesh: SocketAddr,
    pub(crate) host: String,
    pub(crate) machine: String,
    /// As in [`crate::Options`].
    pub(crate) replication: (u32, bool),
}

/// A client's hello.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Hello {
    pub(crate) role: Role,
    pub(crate) has_token: bool,
    pub(crate) rank: u32,
    pub(crate) world_size: u32,
    /// The rank that the client expects at the other end.
    pub(crate) to: u32,
    pub(crate) nonce: Nonce,
    /// With `Role::Register` only.
    pub(crate) details: Option<Details>,
}

impl Hello {
    /// The body: proof, then the fields the proof covers.
    pub(crate) fn encode(&self, key: &Key, server: &Nonce, group: &GroupId) -> Vec<u8> {
        let mut fields = vec![self.role as u8, u8::from(self.has_token)];
        for number in [self.rank, self.world_size, self.to] {
            fields.extend(number.to_le_bytes());
        }
        fields.extend(self.nonce);
        if let Some(details) = &self.details {
            fields.extend(details.left_ms.to_le_bytes());
            fields.extend(details.pid.to_le_bytes());
            let (each, share_hosts) = details.replication;
            fields.extend(each.to_le_bytes());
            fields.push(u8::from(share_hosts));
            put_address(details.mesh, &mut fields);
            put_text(&details.host, &mut fields);
            put_text(&details.machine, &mut fields);
        }
        let mut body = key.prove(Side::Client, &[server, &fields, group]).to_vec();
        body.extend(fields);
        body
    }

    /// The hello, and whether its proof holds. Without a proof its fields are a stranger's claim.
    pub(crate) fn decode(body: &[u8], key: &Key, server: &Nonce, group: &GroupId) -> Option<(Hello, bool)> {
        let (proof, covered) = body.split_first_chunk::<PROOF_BYTES>()?;
        let mut fields = Fields(covered);
        let role = match fields.u8()? {
            1 => Role::Register,
            2 => Role::Mesh,
            _ => return None,
        };
        let has_token = fields.bool()?;
        let (rank, world_size, to) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let nonce = fields.array()?;
        let details = match role {
            Role::Mesh => None,
            Role::Register => Some(Details {
                left_ms: fields.u64()?,
                pid: fields.u32()?,
                replication: (fields.u32()?, fields.bool()?),
                mesh: fields.address()?,
                host: fields.text()?,
                machine: fields.text()?,
            }),
        };
        let hello = fields.end(Hello { role, has_token, rank, world_size, to, nonce, details })?;
        let is_proved = key.accepts(Side::Client, &[server, covered, group], proof);
        Some((hello, is_proved))
    }

    /// The bytes that the server's proof covers.
    fn transcript<'a>(
        &'a self,
        server: &'a Nonce,
        group: &'a GroupId,
        identity: &'a mut [u8; 5],
    ) -> [&'a [u8]; 4] {
        identity[0] = self.role as u8;
        identity[1..].copy_from_slice(&self.rank.to_le_bytes());
        [&self.nonce, server, identity, group]
    }

    /// The body of the server's answer to this hello.
    pub(crate) fn welcome(&self, key: &Key, server: &Nonce, group: &GroupId) -> [u8; PROOF_BYTES] {
        key.prove(Side::Server, &self.transcript(server, group, &mut [0; 5]))
    }

    /// Whether the server's answer proves that it knows the token.
    pub(crate) fn accepts_welcome(&self, body: &[u8], key: &Key, server: &Nonce, group: &GroupId) -> bool {
        body.try_into()
            .is_ok_and(|proof| key.accepts(Side::Server, &self.transcript(server, group, &mut [0; 5]), proof))
    }
}

/// The machine and address of a rank.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Location {
    /// Ranks with equal numbers share a machine.
    pub(crate) machine: u32,
    pub(crate) address: SocketAddr,
    pub(crate) host: String,
}

impl Location {
    /// The host's name, for messages.
    pub(crate) fn describe(&self) -> String {
        format!("{} ({})", self.host, self.address)
    }
}

/// The group's number, and the location of each rank.
#[derive(Debug, PartialEq)]
pub(crate) struct Table {
    pub(crate) group: GroupId,
    pub(crate) locations: Vec<Location>,
}

impl Table {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut body = self.group.to_vec();
        body.extend((self.locations.len() as u32).to_le_bytes());
        for location in &self.locations {
            body.extend(location.machine.to_le_bytes());
            put_address(location.address, &mut body);
            put_text(&location.host, &mut body);
        }
        body
    }

    pub(crate) fn decode(body: &[u8]) -> Option<Table> {
        let mut fields = Fields(body);
        let group = fields.array()?;
        let count = fields.u32()?;
        let mut locations = Vec::new();
        for _ in 0..count {
            locations.push(Location {
                machine: fields.u32()?,
                address: fields.address()?,
                host: fields.text()?,
            });
        }
        fields.end(Table { group, locations })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hello() -> Hello {
        let details = Details {
            left_ms: 1500,
            pid: 77,
            replication: (2, true),
            mesh: "10.1.2.3:456".parse().unwrap(),
            host: "n1".to_owned(),
            machine: "boot net".to_owned(),
        };
        Hello {
            role: Role::Register,
            has_token: true,
            rank: 3,
            world_size: 8,
            to: 0,
            nonce: [7; 32],
            details: Some(details),
        }
    }

    #[test]
    fn hello_round_trip_and_every_changed_bit_breaks_the_proof() {
        let (key, nonce, group) = (Key::new(Some("cup")), [1; 32], [2; 16]);
        for hello in [hello(), Hello { role: Role::Mesh, details: None, ..hello() }] {
            let body = hello.encode(&key, &nonce, &group);
            assert!(body.len() < STRANGER_BYTES);
            assert_eq!(Hello::decode(&body, &key, &nonce, &group), Some((hello.clone(), true)));
            assert_eq!(Hello::decode(&body, &key, &[9; 32], &group), Some((hello.clone(), false)));
            assert_eq!(Hello::decode(&body, &key, &nonce, &[9; 16]), Some((hello.clone(), false)));
            for bit in 0..body.len() * 8 {
                let mut broken = body.clone();
                broken[bit / 8] ^= 1 << (bit % 8);
                assert!(!matches!(Hello::decode(&broken, &key, &nonce, &group), Some((_, true))));
            }
            let welcome = hello.welcome(&key, &nonce, &group);
            assert!(hello.accepts_welcome(&welcome, &key, &nonce, &group));
            assert!(!hello.accepts_welcome(&welcome, &Key::new(None), &nonce, &group));
            assert!(!hello.accepts_welcome(&welcome[1..], &key, &nonce, &group));
        }
    }

    #[test]
    fn a_flag_byte_other_than_0_and_1_is_refused() {
        let (key, nonce, group) = (Key::new(Some("cup")), [1; 32], [2; 16]);
        for (token, fits) in [(0, true), (1, true), (9, false)] {
            let mut fields = hello().encode(&key, &nonce, &group).split_off(PROOF_BYTES);
            fields[1] = token;
            let proof = key.prove(Side::Client, &[&nonce, &fields, &group]);
            let body = [&proof[..], &fields].concat();
            assert_eq!(Hello::decode(&body, &key, &nonce, &group).is_some(), fits, "{token}");
        }
    }

    #[test]
    fn table_and_challenge_round_trip() {
        let location =
            |k: u32, at: &str| Location { machine: k, address: at.parse().unwrap(), host: format!("n{k}") };
        let table =
            Table { group: [5; 16], locations: vec![location(0, "1.2.3.4:5"), location(1, "[::1]:9")] };
        assert_eq!(Table::decode(&table.encode()), Some(table));
        assert_eq!(read_challenge(&challenge(&[3; 32])), Some((PROTOCOL, [3; 32])));
        assert_eq!(read_challenge(b"SSH-2.0-OpenSSH_9.6 and more, forty bytes"), None);
        let mut out = Vec::new();
        Message::put(Kind::Go, b"abc", &mut out);
        assert_eq!(Message::length(out[..4].try_into().unwrap(), 4), Some(4));
        assert_eq!(Message::length(out[..4].try_into().unwrap(), 3), None);
        assert_eq!(Message::parse(&out[4..]), Some(Message { kind: Kind::Go, body: b"abc".to_vec() }));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_refused_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Message::parse(&bytes);
            let _ = read_challenge(&bytes);
            let _ = Table::decode(&bytes);
            let claim = Hello::decode(&bytes, &Key::new(None), &[0; 32], &[0; 16]);
            prop_assert!(!matches!(claim, Some((_, true))));
        }
    }
}
