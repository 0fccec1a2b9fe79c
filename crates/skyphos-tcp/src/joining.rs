//! A rank that joins a group: its connections, and rank 0's messages to it.

use crate::handshake::{Key, random};
use crate::lobby::{LinkEvent, Lobby};
use crate::message::{Details, Hello, Kind, Message, Role};
use crate::options::Options;
use skyphos_types::{Error, Result};
use std::time::{Duration, Instant};

/// Advice if TLS settings differ.
pub(crate) const SAME_TLS: &str = "give all ranks certificates of one authority, or give none of them any";

/// How long a rank still waits for rank 0 after its own deadline.
pub(crate) const VERDICT_TIME: Duration = Duration::from_secs(3);

/// An event during the bring-up.
pub(crate) enum Event {
    /// A message of rank 0, other than a refusal.
    RankZero(Message),
    /// An event on another connection.
    Other(LinkEvent),
    /// The time has passed.
    Nothing,
}

/// A rank that joins a group.
pub(crate) struct Joining {
    pub(crate) options: Options,
    pub(crate) key: Key,
    pub(crate) lobby: Lobby,
    pub(crate) deadline: Instant,
    /// The connection to rank 0, once this rank is registered.
    pub(crate) rank_zero: Option<usize>,
    /// Rank 0 has refused this rank, or its connection is gone: there is nothing to report to it.
    pub(crate) is_refused: bool,
}

impl Joining {
    /// The error in rank 0's refusal.
    pub(crate) fn refusal(&self, message: &Message) -> Error {
        Error::from_wire(&message.body).unwrap_or_else(|| {
            Error::refused(format!("{} did not say why", self.options.describe_rendezvous()))
        })
    }

    /// The next event. `Err` if rank 0 refuses or is gone.
    pub(crate) fn next_event(&mut self, until: Instant) -> Result<Event> {
        match self.lobby.next(until)? {
            None => Ok(Event::Nothing),
            Some(LinkEvent::Gone(id, cause) | LinkEvent::Denied(id, cause)) if self.rank_zero == Some(id) => {
                self.is_refused = true;
                let cause = format!("{cause} during {}", self.options.describe_rendezvous());
                Err(Error::PeerLost { rank: 0, address: self.options.rendezvous.clone(), cause })
            }
            Some(LinkEvent::Message(id, message)) if self.rank_zero == Some(id) => match message.kind {
                Kind::Refusal => {
                    self.is_refused = true;
                    Err(self.refusal(&message))
                }
                _ => Ok(Event::RankZero(message)),
            },
            Some(other) => Ok(Event::Other(other)),
        }
    }

    /// The error for a peer whose TLS settings differ from those of this rank.
    pub(crate) fn denied(&self, there: &str, cause: &str) -> Error {
        let rank = self.options.rank;
        Error::refused(format!(
            "rank {rank} and what answers at {there} do not agree on TLS: {cause}; {SAME_TLS}"
        ))
    }

    pub(crate) fn hello(&self, role: Role, to: u32, details: Option<Details>) -> Result<Hello> {
        let Options { rank, world_size, .. } = self.options;
        let (has_token, nonce) = (self.key.has_token(), random()?);
        Ok(Hello { role, has_token, rank, world_size, to, nonce, details })
    }

    /// The error for a rank 0 that has stopped answering. `since`: the last step that succeeded.
    pub(crate) fn silent(&self, since: &str) -> Error {
        let call = format!("{} ({since}, then it fell silent)", self.options.describe_rendezvous());
        Error::Timeout { missing: vec![0], call, after: self.options.timeout }
    }

    /// Reports this rank's error to rank 0. Returns the error that all ranks return.
    pub(crate) fn report(&mut self, error: Error) -> Error {
        let Some(rank_zero) = self.rank_zero else { return error };
        if self.is_refused {
            return error;
        }
        self.lobby.send(rank_zero, Kind::Failed, &error.as_seen_by_others(self.options.rank).to_wire());
        if error == Error::Interrupted {
            // The user waits, so the message is tried once; without it rank 0 sees a lost connection.
            return error;
        }
        let until = Instant::now() + VERDICT_TIME;
        loop {
            match self.next_event(until) {
                Ok(Event::Nothing) => return error,
                Ok(_) => {}
                Err(_) if !self.is_refused => return error,
                Err(Error::PeerLost { rank: 0, .. }) => return error,
                Err(verdict) => return verdict,
            }
        }
    }
}
