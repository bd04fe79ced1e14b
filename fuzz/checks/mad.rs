//! Any bytes, as a message of the connection manager and as a request's private data: they are
//! refused, or they are understood, and what is emitted from the understanding is understood in the
//! same way.

use bellpush::wire::cm::{IP_HEADER_BYTES, IpHeader, MAD_BYTES, Mad, Message};

/// Panics when something is wrong.
pub fn run(data: &[u8]) {
    let Ok(mad) = Mad::parse(data) else { return };
    assert_eq!(data.len(), MAD_BYTES);
    assert_eq!(Mad::parse(&mad.emit()), Ok(mad.clone()));
    let private = match &mad.message {
        Message::Req(req) => &req.private[..IP_HEADER_BYTES],
        Message::SidrReq(req) => &req.private[..IP_HEADER_BYTES],
        _ => return,
    };
    let private: [u8; IP_HEADER_BYTES] = private.try_into().expect("as many bytes");
    if let Ok(header) = IpHeader::parse(&private) {
        assert_eq!(IpHeader::parse(&header.emit()), Ok(header));
    }
}
