//! Messages from one rank to another.

use crate::Comm;
use skyphos_core::Call;
use skyphos_core::frame::CallSig;
use skyphos_core::point_to_point::{self, ReceiveInto, ReceivedMessage, Status};
use skyphos_types::{Error, Result};

impl Comm {
    /// Sends parts to a rank, with a tag. Not collective. A message of up to 8 MiB goes out whether or not `dest` receives it;
    /// the rest of a larger one waits for that.
    ///
    /// # Errors
    /// A rank that there is not; later [`Error::PeerLost`], or what its receiver failed with meanwhile.
    ///
    /// ```
    /// use skyphos::Comm;
    ///
    /// let ranks = Comm::local(2, &Default::default()).unwrap();
    /// ranks.map_ranks(|comm| match comm.rank() {
    ///     0 => comm.send(1, 7, vec![b"hello"]).unwrap().run().unwrap(),
    ///     _ => {
    ///         let message = comm.receive::<Vec<u8>>(Some(0), None, None).unwrap().run().unwrap();
    ///         assert_eq!((message.status.tag, &message.parts[0][..]), (7, &b"hello"[..]));
    ///     }
    /// });
    /// ```
    pub fn send<P: AsRef<[u8]> + Send + Sync + 'static>(
        &self,
        dest: u32,
        tag: u32,
        parts: Vec<P>,
    ) -> Result<Call<()>> {
        self.check_usable()?;
        self.check_member("dest", dest)?;
        let sig = CallSig::of_message(self.number(), CallSig::SENDS, Some(dest), Some(tag));
        Ok(self.node().prepare_message(self.group(), sig, move |ep| async move {
            point_to_point::send(&ep, dest, &parts).await
        }))
    }

    /// Receives the first message that fits; `None`: from any rank, with any tag. If its first part is the one of `room`, and
    /// its second as long as the memory there, that part goes there.
    ///
    /// Messages of one sender are received in the order in which they were sent, and by receives in the order in which those
    /// were made.
    ///
    /// # Errors
    /// A rank that there is not, or any rank where ranks are replicated, who could take different ones; later
    /// [`Error::PeerLost`]: the sender is gone, or one of the group is that might have sent it.
    pub fn receive<M: AsMut<[u8]> + Send + 'static>(
        &self,
        source: Option<u32>,
        tag: Option<u32>,
        room: Option<ReceiveInto<M>>,
    ) -> Result<Call<ReceivedMessage<M>>> {
        let sig = self.receiving(CallSig::RECEIVES, source, tag)?;
        Ok(self.node().prepare_message(self.group(), sig, move |ep| async move {
            point_to_point::receive(&ep, room).await
        }))
    }

    /// Waits until there is a message that fits, and leaves it where it is. Errors as of [`Comm::receive`].
    pub fn probe(&self, source: Option<u32>, tag: Option<u32>) -> Result<Call<Status>> {
        let sig = self.receiving(CallSig::PROBES, source, tag)?;
        Ok(self.node().prepare_message(
            self.group(),
            sig,
            |ep| async move { point_to_point::probe(&ep).await },
        ))
    }

    /// The first message that fits, if it has come.
    ///
    /// # Errors
    /// As of [`Comm::receive`]; where ranks are replicated it would differ among replicas.
    pub fn probe_now(&self, source: Option<u32>, tag: Option<u32>) -> Result<Option<Status>> {
        self.refuse_if_replicated("iprobe()", "probe(source=…)")?;
        let sig = self.receiving(CallSig::PROBES, source, tag)?;
        self.node().look_for_message(self.group(), sig)
    }

    /// In place of a message: its receiver gets this error.
    pub fn fail_send(&self, dest: u32, tag: u32, error: Error) -> Error {
        match self.check_usable().and_then(|()| self.check_member("dest", dest)) {
            Ok(()) => self.node().fail_message(self.group(), dest, tag, error),
            Err(_) => error, // there is nobody to tell
        }
    }

    fn receiving(&self, role: u8, source: Option<u32>, tag: Option<u32>) -> Result<CallSig> {
        self.check_usable()?;
        match source {
            Some(source) => self.check_member("source", source)?,
            None => self.refuse_if_replicated("a receive from any rank", "source=…")?,
        }
        Ok(CallSig::of_message(self.number(), role, source, tag))
    }

    fn refuse_if_replicated(&self, what: &str, instead: &str) -> Result<()> {
        match self.node().is_replicated() {
            false => Ok(()),
            true => Err(Error::bad_input(format!(
                "{what} may get another message on each replica of a rank: name the sender ({instead})"
            ))),
        }
    }

    fn check_member(&self, name: &str, rank: u32) -> Result<()> {
        match rank < self.size() {
            true => Ok(()),
            false => Err(Error::bad_input(format!(
                "{name}={rank}: a group of {} has ranks 0 to {}",
                self.size(),
                self.size() - 1
            ))),
        }
    }
}
