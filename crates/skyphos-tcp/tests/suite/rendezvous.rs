//! Bring-up: ranks that connect in any order, and peers that are refused.

use crate::common::{LONG, Rendezvous, connect_all, on_all};
use skyphos_core::collectives::barrier::barrier;
use skyphos_core::frame::{CallKind, CallSig};
use skyphos_core::transport::Transport;
use skyphos_tcp::{Options, Tcp, connect};
use skyphos_types::{Error, Result};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time-out of ranks that find no group.
const SHORT: Duration = Duration::from_millis(300);

fn texts(results: Vec<Result<Tcp>>) -> Vec<String> {
    results.into_iter().map(|r| r.err().expect("no group").to_string()).collect()
}

#[test]
fn every_rank_finds_every_other_whatever_the_order_of_arrival() {
    for size in 1..=8u32 {
        let mut rendezvous = Rendezvous::new();
        let mut options = rendezvous.options(size);
        // A different rotation each time; rank 0 is first, last, or between.
        options.rotate_left((size as usize * 3) % size.max(1) as usize);
        let group: Vec<Tcp> = connect_all(options).into_iter().map(|t| t.unwrap()).collect();
        for tcp in &group {
            assert_eq!(
                (tcp.size(), tcp.facts().ranks_on_host, tcp.facts().name),
                (size, size as usize, "tcp")
            );
            let first = &group[0];
            assert!(
                (0..size).all(|r| tcp.facts().addresses[r as usize] == first.facts().addresses[r as usize]),
                "all see the same addresses"
            );
            let address = &tcp.facts().addresses[0];
            assert!(address.contains("127.0.0.1:"), "{address}");
        }
        let mut ranks: Vec<u32> = group.iter().map(|t| t.rank().0).collect();
        ranks.sort();
        assert_eq!(ranks, (0..size).collect::<Vec<_>>());
    }
}

#[test]
fn ranks_retry_until_rank_0_listens() {
    let mut rendezvous = Rendezvous::free();
    let mut options = rendezvous.options(3);
    let zero = options.remove(0);
    let others: Vec<_> = options.into_iter().map(|o| std::thread::spawn(move || connect(o))).collect();
    // During this time the kernel refuses their connections. No event reports that, and the group forms even if it does not happen.
    std::thread::sleep(Duration::from_millis(20));
    let zero = connect(zero).unwrap();
    assert_eq!(zero.size(), 3);
    for other in others {
        other.join().unwrap().unwrap();
    }
}

#[test]
fn a_shared_token_admits_all_ranks() {
    for mut options in [Rendezvous::new().options(4), Rendezvous::new().encrypted(4)] {
        options.iter_mut().for_each(|o| o.token = Some("the two-handled cup".to_owned()));
        assert!(connect_all(options).iter().all(Result::is_ok));
    }
}

#[test]
fn the_options_of_a_socket_can_be_set() {
    let mut options = Rendezvous::new().options(3);
    for options in &mut options {
        options.socket_buffer = Some(64 * 1024);
        options.interface = Some("127.0.0.1".parse().unwrap());
    }
    assert!(connect_all(options).iter().all(Result::is_ok));
}

#[test]
fn two_processes_with_one_rank_are_named_to_all() {
    for (size, ranks) in [(4, vec![0, 1, 2, 2, 3]), (2, vec![0, 0, 1]), (3, vec![0, 1, 1])] {
        let mut rendezvous = Rendezvous::new();
        let all = rendezvous.options(size);
        let again = ranks.iter().find(|r| ranks.iter().filter(|q| q == r).count() == 2).unwrap();
        let mut fd = all[0].listen_fd;
        // The first rank 0 may be done before the second one tries to listen: the port stays taken until then.
        // SAFETY: `Rendezvous` has just opened it, and it was not closed since.
        let open_port =
            fd.filter(|_| *again == 0).map(|fd| unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned());
        let options = ranks.iter().map(|rank| {
            let mut options = all[*rank as usize].clone();
            // Two ranks 0 cannot share the socket: the second finds the port taken.
            options.listen_fd = if *rank == 0 { fd.take() } else { None };
            options.timeout = if *again == 0 { SHORT } else { LONG };
            options
        });
        let results = connect_all(options.collect());
        drop(open_port);
        if *again == 0 {
            // The first rank 0 has its group; the second gets the error at once.
            let text = results[1].as_ref().err().expect("refused").to_string();
            assert!(text.contains("cannot listen") && text.contains("choose another port"), "{text}");
            continue;
        }
        assert!(results.iter().all(|r| matches!(r, Err(Error::Refused { .. }))));
        for text in texts(results) {
            assert!(text.contains(&format!("two processes came as rank {again}")), "{text}");
            assert_eq!(text.matches("pid ").count(), 2, "{text}");
            assert_eq!(text.matches("127.0.0.1:").count(), 2, "{text}");
        }
    }
}

#[test]
fn another_world_size_is_named_to_all() {
    let mut options = Rendezvous::new().options(4);
    options[2].world_size = 5;
    for text in texts(connect_all(options)) {
        assert!(text.contains("a group of 4") && text.contains("rank 2 is in a group of 5"), "{text}");
    }
}

#[test]
fn a_rank_beyond_the_group_is_named_to_all() {
    let mut options = Rendezvous::new().options(3);
    options[2].world_size = 8;
    options[2].rank = 7;
    for text in texts(connect_all(options)) {
        assert!(text.contains("rank 7"), "{text}");
    }
}

#[test]
fn a_wrong_token_is_refused_and_its_rank_is_missing_to_the_others() {
    wrong_token(Rendezvous::options);
    wrong_token(Rendezvous::encrypted);
}

fn wrong_token(options: fn(&mut Rendezvous, u32) -> Vec<Options>) {
    for (theirs, why) in
        [(Some("wrong"), "not the group's"), (None, "it gave no token"), (Some(""), "it gave no token")]
    {
        let mut options = options(&mut Rendezvous::new(), 3);
        for options in &mut options {
            options.token = Some("right".to_owned());
            options.timeout = Duration::from_millis(600);
        }
        options[1].token = theirs.map(str::to_owned);
        let results = connect_all(options);
        assert!(matches!(results[1], Err(Error::Refused { .. })));
        for rank in [0, 2] {
            let Err(Error::Timeout { missing, call, .. }) = &results[rank] else { panic!("rank {rank}") };
            assert_eq!(missing, &[1]);
            assert!(call.contains("turned away") && call.contains(why), "{call}");
        }
        let text = results[1].as_ref().err().unwrap().to_string();
        assert!(text.contains(why) && text.contains("same token"), "{text}");
        assert!(!text.contains("wrong") && !text.contains("right"), "no token in a message: {text}");
    }
}

#[test]
fn a_token_where_the_group_has_none_is_refused() {
    for mut options in [Rendezvous::new().options(2), Rendezvous::new().encrypted(2)] {
        options[1].token = Some("mine".to_owned());
        options[0].timeout = SHORT;
        let text = texts(connect_all(options));
        assert!(text[1].contains("the group has none"), "{}", text[1]);
        assert!(text[0].contains("rank 1 did not come"), "{}", text[0]);
    }
}

#[test]
fn all_ranks_learn_which_ranks_are_missing() {
    let mut options = Rendezvous::new().options(6);
    options.iter_mut().for_each(|o| o.timeout = SHORT);
    options.remove(4);
    options.remove(2);
    let start = Instant::now();
    let results = connect_all(options);
    assert!(start.elapsed() < SHORT + Duration::from_secs(2));
    for result in results {
        let Err(Error::Timeout { missing, call, .. }) = result else { panic!("a time-out is due") };
        assert_eq!(missing, [2, 4]);
        assert!(call.starts_with("the rendezvous at 127.0.0.1:"), "{call}");
    }
}

#[test]
fn the_earliest_deadline_ends_the_bring_up_of_all_ranks() {
    let mut options = Rendezvous::new().options(3);
    options.pop();
    options[1].timeout = SHORT;
    let start = Instant::now();
    for text in texts(connect_all(options)) {
        assert!(text.contains("rank 2 did not come"), "{text}");
    }
    assert!(start.elapsed() < LONG / 2);
}

#[test]
fn without_rank_0_the_time_out_names_it() {
    let at = Rendezvous::free().at;
    let mut options = Options::new(1, 2, &at);
    options.timeout = SHORT;
    let text = connect(options).err().unwrap().to_string();
    assert!(text.contains("rank 0 did not come") && text.contains("refused"), "{text}");
}

#[test]
fn other_programs_at_the_rendezvous_are_recognised() {
    // A server that sends nothing, one that speaks another protocol, one that closes the connection.
    for (greeting, stays, hint) in [
        (&b""[..], true, "no Skyphos greeting"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", true, "does not speak Skyphos"),
        (b"", false, "closed the connection"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut options = Options::new(1, 2, listener.local_addr().unwrap().to_string());
        options.timeout = SHORT;
        listener.set_nonblocking(true).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut kept = Vec::new();
                while !over.load(Ordering::Acquire) {
                    if let Ok((mut stream, _)) = listener.accept() {
                        let _ = std::io::Write::write_all(&mut stream, greeting);
                        kept.extend(stays.then_some(stream));
                    }
                    std::thread::yield_now();
                }
            });
            let text = connect(options).err().unwrap().to_string();
            over.store(true, Ordering::Release);
            assert!(text.contains(hint) && text.contains("rank 0 did not come"), "{text}");
        });
    }
}

#[test]
fn unusable_addresses_are_bad_input() {
    let mut options = Options::new(0, 2, "no-such-host.invalid:29500");
    options.timeout = SHORT;
    let text = connect(options.clone()).err().unwrap().to_string();
    assert!(text.contains("no-such-host.invalid") && text.contains("check the host's name"), "{text}");
    options.rank = 1;
    let text = connect(options).err().unwrap().to_string();
    assert!(text.contains("check the host's name"), "{text}");

    let mut options = Options::new(0, 2, "127.0.0.1:29500");
    options.interface = Some("203.0.113.7".parse().unwrap());
    let text = connect(options).err().unwrap().to_string();
    assert!(text.contains("not an address of this machine"), "{text}");
}

#[test]
fn an_inherited_descriptor_must_be_a_listening_socket() {
    let fail = |fd| {
        let mut options = Options::new(0, 2, "127.0.0.1:29500");
        options.listen_fd = Some(fd);
        connect(options).err().unwrap().to_string()
    };
    assert!(fail(-1).contains("no such file descriptor"));
    assert!(fail(9999).contains("no such file descriptor"));
    let file = std::fs::File::open("/dev/null").unwrap();
    assert!(fail(file.into_raw_fd()).contains("not a socket"));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    assert!(fail(stream.into_raw_fd()).contains("does not listen"));
    assert!(listener.as_raw_fd() >= 0);
}

#[test]
fn ctrl_c_on_one_rank_ends_the_bring_up_of_all() {
    let mut options = Rendezvous::new().options(3);
    options.pop();
    options[1].interrupted = Some(|| true);
    let start = Instant::now();
    let results = connect_all(options);
    assert!(matches!(results[1], Err(Error::Interrupted)));
    // Rank 0 waits for rank 2 unless rank 1 had registered before it was interrupted.
    let text = results[0].as_ref().err().unwrap().to_string();
    assert!(text.contains("rank 1"), "{text}");
    assert!(start.elapsed() < LONG / 2);
}

#[test]
fn a_second_group_may_use_the_address_of_a_running_one() {
    let mut rendezvous = Rendezvous::free();
    let first = connect_all(rendezvous.options(3));
    let second = connect_all(rendezvous.options(3));
    assert!(first.iter().chain(&second).all(Result::is_ok));
}

#[test]
fn an_unlimited_time_out_does_not_overflow() {
    let mut options = Rendezvous::new().options(2);
    options.iter_mut().for_each(|o| o.timeout = Duration::MAX);
    for tcp in connect_all(options) {
        tcp.unwrap().close(Duration::MAX).unwrap();
    }
}

#[test]
fn a_group_of_one_needs_no_network() {
    let mut tcp = connect(Options::new(0, 1, "nowhere at all")).unwrap();
    assert_eq!((tcp.size(), tcp.facts().ranks_on_host), (1, 1));
    let mut events = Vec::new();
    tcp.poll(Duration::from_millis(2), &mut events);
    tcp.close(LONG).unwrap();
    assert!(events.is_empty());
}

#[test]
fn a_group_of_32_ranks_comes_up() {
    on_all(32, |_, node, group| {
        node.call(&group, CallSig::plain(CallKind::Barrier), barrier).unwrap();
    });
}

#[test]
fn another_number_of_replicas_is_named_to_all() {
    for (theirs, named) in
        [((2, true), "replication=2, share_hosts=True"), ((1, true), "replication=1, share_hosts=True")]
    {
        let mut options = Rendezvous::new().options(4);
        options[2].replication = theirs;
        for text in texts(connect_all(options)) {
            let ours = "rank 0 is in init(replication=1, share_hosts=False)";
            assert!(text.contains(ours) && text.contains(&format!("rank 2 is in init({named})")), "{text}");
        }
    }
}
