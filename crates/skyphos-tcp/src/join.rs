//! Bring-up on ranks other than 0: register with rank 0, then connect to the other ranks.
//!
//! ```text
//! connect to the rendezvous, again and again until rank 0 is there; prove knowledge of the token; register
//! wait for the table
//! connect to the other ranks (`mesh`)
//! report to rank 0; wait for "go"
//! ```

use crate::connections::Connections;
use crate::handshake::Key;
use crate::joining::{Event, Joining, VERDICT_TIME};
use crate::lobby::{LinkEvent, Lobby};
use crate::mesh::mesh;
use crate::message::{Kind, Table};
use crate::options::Options;
use crate::tls::Tls;
use skyphos_types::{Error, Result};

/// Brings the group up as a rank other than 0.
pub(crate) fn join(options: Options, tls: Option<Tls>) -> Result<Connections> {
    let mut joining = Joining {
        key: Key::new(options.token.as_deref()),
        lobby: Lobby::new(options.world_size as usize, options.interrupted, tls)?,
        deadline: options.deadline(),
        rank_zero: None,
        is_refused: false,
        options,
    };
    joining.run().map_err(|error| joining.report(error))
}

impl Joining {
    fn run(&mut self) -> Result<Connections> {
        let (rank_zero, listener) = self.register()?;
        self.rank_zero = Some(rank_zero);
        let table = self.wait_for_table()?;
        let mut links = mesh(self, listener, &table)?;
        links[0] = Some(rank_zero);
        self.lobby.send(rank_zero, Kind::Ready, &[]);
        self.wait_for_go()?;
        let wires = links.into_iter().map(|link| link.map(|id| self.lobby.take(id)).transpose());
        Ok(Connections { wires: wires.collect::<Result<_>>()?, locations: table.locations, arena: None })
    }

    /// Waits for the table that rank 0 sends once all ranks are registered.
    fn wait_for_table(&mut self) -> Result<Table> {
        loop {
            match self.next_event(self.deadline + VERDICT_TIME)? {
                Event::Nothing => return Err(self.silent("rank 0 registered this rank")),
                Event::RankZero(message) if message.kind == Kind::Table => {
                    return Table::decode(&message.body)
                        .filter(|t| t.locations.len() == self.options.world_size as usize)
                        .ok_or(Error::Corrupt {
                            rank: 0,
                            message: "its table of ranks cannot be read".to_owned(),
                        });
                }
                _ => {}
            }
        }
    }

    /// Waits for the "go" that rank 0 sends once every rank is connected to all others.
    fn wait_for_go(&mut self) -> Result<()> {
        loop {
            match self.next_event(self.deadline + VERDICT_TIME)? {
                Event::Nothing => return Err(self.silent("this rank is connected to all")),
                Event::RankZero(message) if message.kind == Kind::Go => break,
                // The peer is a stranger, since all ranks are connected already.
                Event::Other(LinkEvent::Message(id, _)) => self.lobby.drop_link(id),
                _ => {}
            }
        }
        self.lobby.flush(self.deadline + VERDICT_TIME)
    }
}
