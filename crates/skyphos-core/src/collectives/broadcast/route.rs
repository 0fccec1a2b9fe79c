//! Routes of a broadcast: the order in which ranks forward the message, and the length of its chunks.

use skyphos_types::{Error, Result};

/// A message of up to this many bytes is sent together with the table of its parts, instead of after it.
pub const SMALL_BYTES: usize = 32 * 1024;

/// Messages of at least this many bytes are sent once to each host, whose ranks share them in memory.
pub const SHARED_BYTES: usize = 256 * 1024;

/// The path of a message's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Route {
    /// Chunk by chunk from each rank to the next.
    Chain = 1,
    /// Down a binomial tree.
    Binomial = 2,
    /// The root sends each rank one range; the ranges then travel around a ring.
    ScatterAllgather = 3,
    /// From the root directly to each other rank.
    Simple = 4,
}

impl Route {
    /// All routes.
    pub const ALL: [Route; 4] = [Route::Chain, Route::Binomial, Route::ScatterAllgather, Route::Simple];

    /// The name that users write.
    pub fn name(self) -> &'static str {
        match self {
            Route::Chain => "chain",
            Route::Binomial => "binomial",
            Route::ScatterAllgather => "scatter_allgather",
            Route::Simple => "simple",
        }
    }

    /// The route of a name.
    ///
    /// # Errors
    /// `BadInput` for an unknown name.
    pub fn from_name(name: &str) -> Result<Route> {
        Route::ALL.into_iter().find(|route| route.name() == name).ok_or_else(|| {
            let known: Vec<_> = Route::ALL.iter().map(|route| route.name()).collect();
            Error::bad_input(format!("unknown algorithm {name:?}: use one of auto, {}", known.join(", ")))
        })
    }

    pub(super) fn from_code(code: u8) -> Option<Route> {
        Route::ALL.into_iter().find(|route| *route as u8 == code)
    }
}

/// The root's choice, which it makes by the message's length: a route, and a bound on the bytes of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteChoice {
    /// The route.
    pub route: Route,
    /// Most bytes of a chunk. A frame's capacity is a second bound.
    pub chunk_bytes: usize,
}
