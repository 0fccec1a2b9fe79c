//! Point-to-point messages.

use crate::Comm;
use skyphos_core::Call;
use skyphos_core::frame::CallSig;
use skyphos_core::point_to_point::{self, ReceiveInto, ReceivedMessage, Status};
use skyphos_types::{Error, Result};

impl Comm {
    /// Sends parts to a rank, with a tag. Not collective. Up to 8 MiB are sent before `dest` receives the message; the rest of a
    /// larger message waits for the receive.
    ///
    /// # Errors
    /// `BadInput` if `dest` is not a rank. Later [`Error::PeerLost`], or the error of the receiver.
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

    /// Receives the first message that matches; `None` matches any rank, or any tag. If the message's first part equals that of
    /// `into`, and its second part has the length of `into`'s memory, the second part is received into that memory.
    ///
    /// Messages of one sender are received in the order of sending, by receives in the order in which they were posted.
    ///
    /// # Errors
    /// `BadInput` if `source` is not a rank, or is any rank in a replicated group, where replicas could receive different
    /// messages. Later [`Error::PeerLost`] if the sender is lost; without a `source`, if any rank of the group is lost.
    pub fn receive<M: AsMut<[u8]> + Send + 'static>(
        &self,
        source: Option<u32>,
        tag: Option<u32>,
        into: Option<ReceiveInto<M>>,
    ) -> Result<Call<ReceivedMessage<M>>> {
        let sig = self.receive_sig(CallSig::RECEIVES, source, tag)?;
        Ok(self.node().prepare_message(self.group(), sig, move |ep| async move {
            point_to_point::receive(&ep, into).await
        }))
    }

    /// Waits for a message that matches, and does not receive it. Errors are those of [`Comm::receive`].
    pub fn probe(&self, source: Option<u32>, tag: Option<u32>) -> Result<Call<Status>> {
        let sig = self.receive_sig(CallSig::PROBES, source, tag)?;
        Ok(self.node().prepare_message(
            self.group(),
            sig,
            |ep| async move { point_to_point::probe(&ep).await },
        ))
    }

    /// The first message that matches, if one has arrived.
    ///
    /// # Errors
    /// Those of [`Comm::receive`], and `BadInput` in a replicated group, whose replicas would get different answers.
    pub fn probe_now(&self, source: Option<u32>, tag: Option<u32>) -> Result<Option<Status>> {
        self.refuse_if_replicated("iprobe()", "probe(source=…)")?;
        let sig = self.receive_sig(CallSig::PROBES, source, tag)?;
        self.node().look_for_message(self.group(), sig)
    }

    /// Sends an error in place of a message. The receive raises it.
    pub fn fail_send(&self, dest: u32, tag: u32, error: Error) -> Error {
        match self.check_usable().and_then(|()| self.check_member("dest", dest)) {
            Ok(()) => self.node().fail_message(self.group(), dest, tag, error),
            Err(_) => error, // no peer can receive it
        }
    }

    fn receive_sig(&self, role: u8, source: Option<u32>, tag: Option<u32>) -> Result<CallSig> {
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
                "{what} may get a different message on each replica of a rank: name the sender ({instead})"
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
