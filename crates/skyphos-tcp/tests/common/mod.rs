//! Groups of threads over real sockets on the loopback.
#![allow(dead_code)]

pub mod certificates;

use skyphos_core::{Group, Node, Settings};
use skyphos_tcp::{Options, Tcp, connect};
use skyphos_types::{CommId, GroupRank, Result, WorldRank};
use std::net::TcpListener;
use std::os::fd::IntoRawFd;
use std::sync::Arc;
use std::time::Duration;

/// Limit on the time of what must happen.
pub const LONG: Duration = Duration::from_secs(30);

/// An address for a rendezvous that no other program can take: a listening socket, which rank 0 inherits.
pub struct Rendezvous {
    pub at: String,
    listener: Option<TcpListener>,
}

impl Rendezvous {
    pub fn new() -> Rendezvous {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Rendezvous { at: listener.local_addr().unwrap().to_string(), listener: Some(listener) }
    }

    /// An address at which no process listens yet.
    pub fn free() -> Rendezvous {
        Rendezvous { listener: None, ..Rendezvous::new() }
    }

    /// Each rank's options in a group over TLS.
    pub fn encrypted(&mut self, size: u32) -> Vec<Options> {
        let mut all = self.options(size);
        all.iter_mut().for_each(|options| options.tls = Some(certificates::shared()));
        all
    }

    /// Each rank's options in a group that uses shared memory, with or without TLS during the bring-up.
    pub fn shared_memory(&mut self, size: u32, tls: bool) -> Vec<Options> {
        let mut all = if tls { self.encrypted(size) } else { self.options(size) };
        all.iter_mut().for_each(|options| options.shared_memory = true);
        all
    }

    /// Each rank's options, over sockets.
    pub fn options(&mut self, size: u32) -> Vec<Options> {
        let mut all: Vec<Options> = (0..size)
            .map(|rank| {
                let mut options = Options::new(rank, size, &self.at);
                (options.timeout, options.shared_memory) = (LONG, false);
                options
            })
            .collect();
        all[0].listen_fd = self.listener.take().map(IntoRawFd::into_raw_fd);
        all
    }
}

/// Connects with each of the options on its own thread, all at once.
pub fn connect_all(options: Vec<Options>) -> Vec<Result<Tcp>> {
    let tasks: Vec<_> = options.into_iter().map(|o| std::thread::spawn(move || connect(o))).collect();
    tasks.into_iter().map(|t| t.join().unwrap()).collect()
}

pub fn group(size: u32) -> Vec<Tcp> {
    connect_all(Rendezvous::new().options(size)).into_iter().map(|t| t.unwrap()).collect()
}

pub fn shared_memory_group(size: u32, tls: bool) -> Vec<Tcp> {
    connect_all(Rendezvous::new().shared_memory(size, tls)).into_iter().map(|t| t.unwrap()).collect()
}

/// A group over each kind of connection.
pub fn each_connection(size: u32) -> [Vec<Tcp>; 4] {
    [group(size), encrypted_group(size), shared_memory_group(size, false), shared_memory_group(size, true)]
}

pub fn encrypted_group(size: u32) -> Vec<Tcp> {
    connect_all(Rendezvous::new().encrypted(size)).into_iter().map(|t| t.unwrap()).collect()
}

/// Runs the body on each rank's thread, over a node.
pub fn on_all<R: Send>(size: u32, body: impl Fn(u32, Arc<Node>, Arc<Group>) -> R + Sync) -> Vec<R> {
    on_each(group(size), body)
}

/// Like [`on_all`], over an existing group.
pub fn on_each<R: Send>(group: Vec<Tcp>, body: impl Fn(u32, Arc<Node>, Arc<Group>) -> R + Sync) -> Vec<R> {
    let size = group.len() as u32;
    let settings = Settings { timeout: LONG, ..Settings::default() };
    std::thread::scope(|scope| {
        let start = |(rank, transport): (usize, Tcp)| {
            let (body, settings) = (&body, settings.clone());
            scope.spawn(move || {
                let node = Node::new(Box::new(transport), settings).unwrap();
                let group = Arc::new(Group::new(
                    CommId(1),
                    (0..size).map(WorldRank).collect(),
                    GroupRank(rank as u32),
                ));
                node.open_group(group.clone());
                let result = body(rank as u32, node.clone(), group);
                node.close().unwrap();
                result
            })
        };
        let tasks: Vec<_> = group.into_iter().enumerate().map(start).collect();
        tasks.into_iter().map(|t| t.join().unwrap()).collect()
    })
}
