//! The result of the bring-up: host and address of each rank, and a connection to each of them.

use crate::message::Location;
use crate::options::Options;
use crate::sockets::{self, Tuning};
use crate::wire::DetachedWire;
use skyphos_core::host::Host;
use skyphos_core::shared_memory::arena::Arena;
use skyphos_types::Result;
use std::net::SocketAddr;
use std::sync::Arc;

/// Host and address of all ranks, and a connection to each other rank.
pub(crate) struct Connections {
    pub(crate) locations: Vec<Location>,
    pub(crate) wires: Vec<Option<DetachedWire>>,
    /// This rank's arena, if other ranks of the host have opened it.
    pub(crate) arena: Option<Arc<Arena>>,
}

impl Connections {
    /// The connections of a group of one rank.
    pub(crate) fn alone(options: &Options) -> Result<Connections> {
        if let Some(fd) = options.listen_fd {
            drop(sockets::inherit(fd, &Tuning::default())?);
        }
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let location = Location { machine: 0, address, host: Host::this().name };
        Ok(Connections { locations: vec![location], wires: vec![None], arena: None })
    }
}
