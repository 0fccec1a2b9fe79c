//! Routes of a broadcast: which rank passes a message on to which, in what chunks.

use skyphos_types::{Error, Result};

/// Messages up to this size go with their table.
pub const SMALL_BYTES: usize = 32 * 1024;

/// Messages from this size on go to each host once, whose ranks share them.
pub const SHARED_BYTES: usize = 256 * 1024;

/// How the parts go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Route {
    /// Chunk by chunk from each rank to the next.
    Chain = 1,
    /// Down a binomial tree.
    Binomial = 2,
    /// A range to each rank, which then go around a ring.
    ScatterAllgather = 3,
    /// From the root to each other rank.
    Simple = 4,
}

impl Route {
    /// All of them.
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

    /// The one that is named.
    ///
    /// # Errors
    /// `BadInput` where there is none of that name.
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

/// What the root decides once it knows how much there is: the route, and the most bytes of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// The route.
    pub route: Route,
    /// A chunk has at most so many bytes, and never more than a frame.
    pub chunk_bytes: usize,
}
