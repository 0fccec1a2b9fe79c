//! Sockets: addresses, options, and kernel queries that the standard library lacks.

use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use skyphos_core::transport::Loss;
use skyphos_types::{Error, Result};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use std::io::{self, ErrorKind, IoSlice};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Connections that may wait to be accepted: all ranks of a large group may connect in the same millisecond, and a dropped SYN costs
/// a second. The kernel caps it at net.core.somaxconn.
const LISTEN_BACKLOG: i32 = 4096;

/// Interval of keep-alive probes until `Options::heartbeat` sets another one, and unanswered probes after which the kernel ends the
/// connection.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
const KEEP_ALIVE_TRIES: u32 = 5;

/// The addresses that "host:port" stands for.
pub(crate) fn resolve(place: &str) -> io::Result<Vec<SocketAddr>> {
    let addresses: Vec<_> = place.to_socket_addrs()?.collect();
    match addresses.is_empty() {
        true => Err(io::Error::new(ErrorKind::NotFound, "no address")),
        false => Ok(addresses),
    }
}

pub(crate) fn unresolvable(place: &str, cause: &io::Error) -> Error {
    Error::bad_input(format!(
        "the rendezvous {place} has no address ({cause}): check the host's name, or write its IP address"
    ))
}

/// Options that a socket needs before it connects or listens.
#[derive(Clone, Default)]
pub(crate) struct Tuning {
    /// Bytes of each buffer. The window scale is agreed with the first packets.
    pub(crate) buffer: Option<usize>,
    /// Congestion control. It is set before the socket connects, because a connection that began with BBR continues to pace.
    pub(crate) congestion: Option<String>,
}

impl Tuning {
    fn apply(&self, socket: &Socket) -> io::Result<()> {
        if let Some(bytes) = self.buffer {
            socket.set_recv_buffer_size(bytes)?;
        }
        self.apply_in_use(socket)
    }

    /// Applies the options to a socket that peers may have connected to. The receive buffer is not made smaller: a peer that was
    /// offered a window of 64 KB sends packets of 32 KB over loopback, and with only 16 KB left it waits 0.2 s before each packet.
    fn apply_in_use(&self, socket: &Socket) -> io::Result<()> {
        if let Some(bytes) = self.buffer {
            socket.set_send_buffer_size(bytes)?;
            if bytes > socket.recv_buffer_size()? {
                socket.set_recv_buffer_size(bytes)?;
            }
        }
        match &self.congestion {
            Some(name) => socket.set_tcp_congestion(name.as_bytes()),
            None if is_bbr(socket)? => {
                // If the system allows neither, the socket keeps BBR.
                let _ = LOSS_BASED.iter().find(|name| socket.set_tcp_congestion(name.as_bytes()).is_ok());
                Ok(())
            }
            None => Ok(()),
        }
    }
}

/// The reason why a congestion control is not available; `None` if it is.
pub(crate) fn congestion_control_error(name: &str) -> Option<io::Error> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP));
    socket.and_then(|socket| socket.set_tcp_congestion(name.as_bytes())).err()
}

fn is_bbr(socket: &Socket) -> io::Result<bool> {
    Ok(socket.tcp_congestion()?.starts_with(BBR.as_bytes()))
}

fn socket(address: SocketAddr, tuning: &Tuning) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    tuning.apply(&socket)?;
    if is_loopback(address.ip()) && tuning.buffer.is_none() {
        socket.set_recv_buffer_size(HOST_BUFFER)?; // see `widen_within_host`
    }
    Ok(socket)
}

/// A non-blocking listening socket.
pub(crate) fn listen(address: SocketAddr, tuning: &Tuning) -> io::Result<TcpListener> {
    let socket = socket(address, tuning)?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(LISTEN_BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Takes over a socket that a launcher left open for this process. An unusable descriptor stays open, since it probably belongs to
/// something else.
pub(crate) fn inherit(fd: RawFd, tuning: &Tuning) -> Result<TcpListener> {
    let refuse = |why: String| Error::bad_input(format!("listen_fd={fd}: {why}"));
    if fd < 0 || !std::fs::exists(format!("/proc/self/fd/{fd}")).unwrap_or(false) {
        return Err(refuse("no such file descriptor is open in this process".to_owned()));
    }
    // SAFETY: it is open (checked above), and `Options::listen_fd` hands its ownership to us; it is
    // given back below if it cannot be used.
    let socket = Socket::from(unsafe { OwnedFd::from_raw_fd(fd) });
    let usable = socket.is_listener().and_then(|listening| {
        if !listening {
            return Ok(false);
        }
        socket.set_nonblocking(true)?;
        socket.set_cloexec(true)?;
        tuning.apply_in_use(&socket)?;
        Ok(true)
    });
    let why = match usable {
        Ok(true) => return Ok(socket.into()),
        Ok(false) => "it is a socket, but does not listen".to_owned(),
        Err(e) => format!("not a socket that can be used ({e})"),
    };
    let _ = socket.into_raw_fd();
    Err(refuse(why))
}

/// A non-blocking socket that has begun to connect.
pub(crate) fn begin_connect(address: SocketAddr, tuning: &Tuning) -> io::Result<TcpStream> {
    let socket = socket(address, tuning)?;
    socket.set_nonblocking(true)?;
    match socket.connect(&address.into()) {
        Err(e) if e.raw_os_error() != Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => Err(e),
        _ => Ok(socket.into()),
    }
}

/// Sets the options of every connection of a group: no delay of small frames, and detection of hosts that are down.
pub(crate) fn prepare(stream: impl AsFd) -> io::Result<()> {
    let socket = SockRef::from(&stream);
    socket.set_tcp_nodelay(true)?;
    keep_alive(stream, KEEP_ALIVE)
}

/// Sends bytes. NOSIGNAL: a peer that is gone is an error here, not a SIGPIPE to the user's program.
pub(crate) fn send(stream: impl AsFd, slices: &[IoSlice<'_>]) -> io::Result<usize> {
    Ok(sendmsg(stream, slices, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)?)
}

/// Limits the unsent bytes in the kernel, so that more of them stay in this process's queue, from which they can be removed.
pub(crate) fn limit_unsent(stream: impl AsFd, bytes: usize) {
    // On a system without this option, the queue holds fewer of the unsent bytes.
    let _ = SockRef::from(&stream).set_tcp_notsent_lowat(bytes as u32);
}

/// Sets the kernel's keep-alive: it probes a peer after a silence of `every`, and then at this interval. The peer's kernel answers, even
/// if its process is stopped or busy.
pub(crate) fn keep_alive(stream: impl AsFd, every: Duration) -> io::Result<()> {
    let keep_alive = TcpKeepalive::new().with_time(every).with_interval(every).with_retries(KEEP_ALIVE_TRIES);
    SockRef::from(&stream).set_tcp_keepalive(&keep_alive)
}

/// Round trip below which a path lies within a cluster.
const SHORT_PATH: Duration = Duration::from_millis(5);

const BBR: &str = "bbr";
/// Congestion controls that react to losses, the preferred one first.
const LOSS_BASED: [&str; 2] = ["cubic", "reno"];

/// Sets BBR again on a long path, if BBR is the system's congestion control and the user named no other.
///
/// BBR paces each flow by measurements of some round trips ago; the flows of a collective start, stop and share links
/// within that time on a short path, and would leave a quarter of the bandwidth unused (an allreduce of 8 hosts at 250 Mbit/s: 206 ms
/// with BBR, 172 with Reno). So sockets begin with a control that reacts to losses. On long paths BBR is better.
pub(crate) fn restore_bbr_on_long_path(stream: &TcpStream) -> io::Result<()> {
    let system = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    match is_bbr(&system)? && round_trip(stream)? >= SHORT_PATH {
        true => SockRef::from(stream).set_tcp_congestion(BBR.as_bytes()),
        false => Ok(()),
    }
}

/// Receive buffer of a connection within a host.
const HOST_BUFFER: usize = 1 << 20;

/// Gives a connection within this host a large buffer from the start, unless the user set a size.
///
/// A loopback packet is as large as the first window of its connection. So until the kernel has widened the window, the sender waits
/// for acknowledgements that the receiver delays by 40 ms, and for probes of the closed window (8 ranks, 300,000 entries each: the first
/// allreduce takes 280 ms, the next ones 90 and 30; with a large buffer the first two take 45 and 28).
pub(crate) fn widen_within_host(stream: &TcpStream, tuning: &Tuning) -> io::Result<()> {
    let within = stream.peer_addr()?.ip() == stream.local_addr()?.ip();
    match within && tuning.buffer.is_none() {
        true => SockRef::from(stream).set_recv_buffer_size(HOST_BUFFER),
        false => Ok(()),
    }
}

/// Acknowledges received bytes at once. The kernel may delay the acknowledgement by 40 ms, and a sender with a small congestion window,
/// as on a fresh connection, waits for it. This is a hint: a failure is ignored.
pub(crate) fn acknowledge_at_once(stream: impl AsFd) {
    let _ = rustix::net::sockopt::set_tcp_quickack(stream, true);
}

/// The time to the peer's system and back, as the kernel has measured it.
fn round_trip(stream: &TcpStream) -> io::Result<Duration> {
    Ok(Duration::from_micros(u64::from(info(stream)?.tcpi_rtt)))
}

/// The kernel's state of a connection.
pub(crate) fn info(stream: impl AsFd) -> io::Result<libc::tcp_info> {
    // SAFETY: all of its fields are numbers, for which zero is fine.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `info`.
    let failed = unsafe {
        libc::getsockopt(
            stream.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &mut len,
        )
    };
    match failed {
        0 => Ok(info),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether the address reaches only this machine.
pub(crate) fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

/// Bytes written to a connection that its peer's system has not acknowledged yet.
pub(crate) fn unacknowledged(stream: impl AsFd) -> io::Result<usize> {
    // TIOCOUTQ, which Linux calls SIOCOUTQ on sockets (tcp(7)).
    const OUTQ: rustix::ioctl::Opcode = 0x5411;
    // SAFETY: TIOCOUTQ writes one int, which `Getter` provides.
    let unsent: i32 = unsafe { rustix::ioctl::ioctl(stream, rustix::ioctl::Getter::<OUTQ, i32>::new())? };
    Ok(unsent.max(0) as usize)
}

/// The kind of loss that a connection's error shows: whether the process at the other end may live.
pub(crate) fn loss_of(error: &io::Error) -> Loss {
    match error.kind() {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Loss::Ended,
        _ => Loss::Silent,
    }
}

/// The cause of a connection's failure, as text for users.
pub(crate) fn failure_cause(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            format!("connection lost: its process ended ({error})")
        }
        ErrorKind::TimedOut | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => {
            format!("connection lost: its host does not answer any more ({error})")
        }
        _ => format!("connection lost: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn congestion_control_is_the_one_asked_for_and_on_short_paths_never_bbr() {
        let name = |socket: &TcpStream| {
            let bytes = SockRef::from(socket).tcp_congestion().unwrap();
            String::from_utf8(bytes).unwrap().trim_end_matches('\0').to_owned()
        };
        let pair = |tuning: &Tuning| {
            let listener = listen(([127, 0, 0, 1], 0).into(), tuning).unwrap();
            listener.set_nonblocking(false).unwrap();
            let one = begin_connect(listener.local_addr().unwrap(), tuning).unwrap();
            (one, listener.accept().unwrap().0)
        };
        let (one, other) = pair(&Tuning::default());
        assert!(round_trip(&one).unwrap() < SHORT_PATH);
        restore_bbr_on_long_path(&one).unwrap();
        assert!(name(&one) != "bbr" && name(&other) != "bbr");
        let asked = |name: &str| Tuning { congestion: Some(name.to_owned()), ..Tuning::default() };
        let (one, other) = pair(&asked("reno"));
        assert!(name(&one) == "reno" && name(&other) == "reno");
        assert!(listen(([127, 0, 0, 1], 0).into(), &asked("no such")).is_err());
    }
}
