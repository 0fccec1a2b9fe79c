//! Making sockets: addresses, options, and the two questions the standard library does not ask.

use skyphos_types::{Error, Result};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Connections that may wait to be accepted: all ranks of a large group may come in the same
/// millisecond, and a dropped SYN costs a second. The kernel caps it at net.core.somaxconn.
const WAITING: i32 = 4096;

/// A peer whose host vanished (power, cable) while nothing was being sent is noticed after
/// 15 s + 3 × 5 s. A stopped or busy process does not matter: its kernel answers.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(15))
    .with_interval(Duration::from_secs(5))
    .with_retries(3);

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

fn socket(address: SocketAddr, buffer: Option<usize>) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if let Some(bytes) = buffer {
        // Before connecting or listening, since the window scale is agreed then.
        socket.set_send_buffer_size(bytes)?;
        socket.set_recv_buffer_size(bytes)?;
    }
    Ok(socket)
}

/// A non-blocking listening socket.
pub(crate) fn listen(address: SocketAddr, buffer: Option<usize>) -> io::Result<TcpListener> {
    let socket = socket(address, buffer)?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(WAITING)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Takes over a socket that a launcher left open for this process. One that cannot be used is left
/// open, since it is probably not what the caller thinks.
pub(crate) fn inherit(fd: RawFd, buffer: Option<usize>) -> Result<TcpListener> {
    let refuse = |why: String| Error::bad_input(format!("listen_fd={fd}: {why}"));
    if fd < 0 || !std::fs::exists(format!("/proc/self/fd/{fd}")).unwrap_or(false) {
        return Err(refuse("no such file descriptor is open in this process".to_owned()));
    }
    // SAFETY: it is open (just looked), and `Options::listen_fd` hands its ownership to us; it is
    // given back below if it cannot be used.
    let socket = Socket::from(unsafe { OwnedFd::from_raw_fd(fd) });
    let usable = socket.is_listener().and_then(|listening| {
        if !listening {
            return Ok(false);
        }
        socket.set_nonblocking(true)?;
        socket.set_cloexec(true)?;
        if let Some(bytes) = buffer {
            socket.set_send_buffer_size(bytes)?;
            socket.set_recv_buffer_size(bytes)?;
        }
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
pub(crate) fn begin_connect(address: SocketAddr, buffer: Option<usize>) -> io::Result<TcpStream> {
    let socket = socket(address, buffer)?;
    socket.set_nonblocking(true)?;
    match socket.connect(&address.into()) {
        Err(e) if e.raw_os_error() != Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => Err(e),
        _ => Ok(socket.into()),
    }
}

/// What every connection of a group has: no delay for small frames, notice of vanished hosts.
pub(crate) fn prepare(stream: impl AsFd) -> io::Result<()> {
    let socket = SockRef::from(&stream);
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&KEEPALIVE)
}

/// Round trip below which a path lies within a cluster.
const SHORT_PATH: Duration = Duration::from_millis(5);

/// Gives a connection the congestion control that was asked for. If none was, and the system's is BBR, a short path
/// gets one that answers to losses. BBR paces each flow by what it measured some round trips ago; the flows of a
/// collective start, stop and share links within that time, and would leave a quarter of them unused (an allreduce
/// of 8 hosts at 250 Mbit/s: 206 ms by BBR, 179 by Reno). Over long paths that lose packets BBR is right.
pub(crate) fn control_congestion(stream: &TcpStream, asked: Option<&str>) -> io::Result<()> {
    let socket = SockRef::from(stream);
    if let Some(name) = asked {
        return socket.set_tcp_congestion(name.as_bytes());
    }
    if socket.tcp_congestion()?.starts_with(b"bbr") && round_trip(stream)? < SHORT_PATH {
        // Neither may be allowed here: then it stays as it is.
        let _ = [b"cubic".as_slice(), b"reno"].iter().find(|name| socket.set_tcp_congestion(name).is_ok());
    }
    Ok(())
}

/// The time to the peer's system and back, as the kernel has measured it.
fn round_trip(stream: &TcpStream) -> io::Result<Duration> {
    // SAFETY: all of its fields are numbers, for which zero is fine.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `info`.
    let failed = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &mut len,
        )
    };
    match failed {
        0 => Ok(Duration::from_micros(u64::from(info.tcpi_rtt))),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether a rank on another machine could use the address.
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

/// Why a connection failed, in words that help.
pub(crate) fn lost(error: &io::Error) -> String {
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
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let name = |stream: &TcpStream| {
            let bytes = SockRef::from(stream).tcp_congestion().unwrap();
            String::from_utf8(bytes).unwrap().trim_end_matches('\0').to_owned()
        };
        assert!(round_trip(&stream).unwrap() < SHORT_PATH);
        control_congestion(&stream, None).unwrap();
        assert_ne!(name(&stream), "bbr");
        control_congestion(&stream, Some("reno")).unwrap();
        assert_eq!(name(&stream), "reno");
        assert!(control_congestion(&stream, Some("no such")).is_err());
    }
}
