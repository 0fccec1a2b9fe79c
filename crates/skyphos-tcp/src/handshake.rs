//! The handshake: each side proves that it knows the token, without sending it.
//!
//! ```text
//! server → client   challenge: magic, protocol, nonce_s
//! client → server   hello:     role, rank, world size, nonce_c, details,
//!                              HMAC-SHA256(token, "client", nonce_s, hello, group)
//! server → client   welcome:   HMAC-SHA256(token, "server", nonce_c, nonce_s, role, rank, group)
//! ```
//!
//! Both nonces are 32 random bytes, so no proof is valid on a second connection; the labels differ, so no proof can be reflected. The
//! client proves first, so a stranger that connects learns nothing by which it could check guesses of the token. On mesh connections
//! the proofs cover the group's number, made by rank 0, so ranks of another group with the same token are strangers. Without a token
//! the key is empty, and the exchange only distinguishes groups.
//!
//! Over TLS the proofs cover a nonce bound to the connection ([`crate::wire`]): an attacker with a certificate and without the token
//! cannot relay the proofs between two ranks.
//!
//! Cost: one round trip after the connection's own, and per side three HMACs of ~1 µs.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use skyphos_types::{Error, Result};

/// Bytes of a nonce and of a proof.
pub(crate) const PROOF_BYTES: usize = 32;

/// Random bytes that make a proof valid on one connection only.
pub(crate) type Nonce = [u8; PROOF_BYTES];

/// The group's number: random, made by rank 0.
pub(crate) type GroupId = [u8; 16];

/// `N` bytes from the system's generator.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|e| Error::bad_input(format!("the system gives no random numbers ({e})")))?;
    Ok(bytes)
}

/// The side that proves.
#[derive(Clone, Copy)]
pub(crate) enum Side {
    Client,
    Server,
}

/// The token as a key.
#[derive(Clone)]
pub(crate) struct Key {
    mac: Hmac<Sha256>,
    has_token: bool,
}

impl Key {
    pub(crate) fn new(token: Option<&str>) -> Key {
        let token = token.unwrap_or("");
        let mac = Hmac::<Sha256>::new_from_slice(token.as_bytes()).expect("HMAC takes keys of any length");
        Key { mac, has_token: !token.is_empty() }
    }

    pub(crate) fn has_token(&self) -> bool {
        self.has_token
    }

    /// An HMAC of the parts, each after its length, so different lists of parts never give the same bytes.
    fn over(&self, side: Side, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = self.mac.clone();
        mac.update(match side {
            Side::Client => b"skyphos client",
            Side::Server => b"skyphos server",
        });
        for part in parts {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac
    }

    pub(crate) fn prove(&self, side: Side, parts: &[&[u8]]) -> [u8; PROOF_BYTES] {
        self.over(side, parts).finalize().into_bytes().into()
    }

    /// Whether a proof is that of [`Key::prove`]. Compares in constant time.
    pub(crate) fn accepts(&self, side: Side, parts: &[&[u8]], proof: &[u8; PROOF_BYTES]) -> bool {
        self.over(side, parts).verify_slice(proof).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_only_for_its_token_side_and_transcript() {
        let key = Key::new(Some("cup"));
        let proof = key.prove(Side::Client, &[b"ab", b"c"]);
        assert!(key.accepts(Side::Client, &[b"ab", b"c"], &proof));
        assert!(!key.accepts(Side::Client, &[b"a", b"bc"], &proof));
        assert!(!key.accepts(Side::Server, &[b"ab", b"c"], &proof));
        assert!(!Key::new(Some("cap")).accepts(Side::Client, &[b"ab", b"c"], &proof));
        assert!(!Key::new(None).accepts(Side::Client, &[b"ab", b"c"], &proof));
        assert!(!Key::new(Some("")).has_token() && !Key::new(None).has_token());
    }

    #[test]
    fn hmac_matches_rfc_4231_case_2() {
        let mut mac = Hmac::<Sha256>::new_from_slice(b"Jefe").unwrap();
        mac.update(b"what do ya want for nothing?");
        let want = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        let got: String = mac.finalize().into_bytes().iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(got, want);
    }
}
