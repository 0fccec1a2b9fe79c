//! Numbers that name a rank, a process, a group, a call or a round. Each has a type of its own, so that one is not taken for
//! another.

macro_rules! identifier {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

identifier! {
    /// The number of a group. All members derive the same one, and frames carry it.
    CommId(u64)
}

identifier! {
    /// The number of a call in its group. All members count calls alike.
    CallNumber(u64)
}

impl std::fmt::LowerHex for CommId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl CallNumber {
    /// The number of the call after this one.
    pub fn next(self) -> CallNumber {
        CallNumber(self.0 + 1)
    }

    /// Returns this number, and advances to the next one.
    pub fn advance(&mut self) -> CallNumber {
        let this = *self;
        *self = this.next();
        this
    }
}

identifier! {
    /// A rank of a group, in the group's order: what callers of a collective name.
    GroupRank(u32)
}

identifier! {
    /// A rank of the transport: what frames are sent to. A group maps its own ranks to these.
    WorldRank(u32)
}

identifier! {
    /// A process of a replicated group; several are replicas of one [`WorldRank`].
    ProcessId(u32)
}

identifier! {
    /// A round of a collective's schedule: a receive matches only messages of its own round.
    Round(u32)
}

impl std::ops::Add<u32> for Round {
    type Output = Round;

    fn add(self, more: u32) -> Round {
        Round(self.0 + more)
    }
}

impl WorldRank {
    /// The process of this rank, on a transport under replication: its ranks are processes.
    pub fn process(self) -> ProcessId {
        ProcessId(self.0)
    }
}

impl ProcessId {
    /// The rank of this process on the transport under replication.
    pub fn rank_below(self) -> WorldRank {
        WorldRank(self.0)
    }
}

/// Adds `index`, the position in a list of all ranks or processes.
macro_rules! index {
    ($($name:ident),*) => {$(
        impl $name {
            /// Its position in a list of all.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}
index!(GroupRank, WorldRank, ProcessId);
