//! Reads from a certificate when it ends.

use jiff::{Timestamp, civil::DateTime, tz::TimeZone};

/// DER tags.
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// Returns the `notAfter` of an X.509 certificate. `None` if `certificate` is not one.
pub(super) fn expiry(certificate: &[u8]) -> Option<Timestamp> {
    let certificate = Element::read(certificate)?.within(SEQUENCE)?;
    let mut fields = Element::read(certificate)?.within(SEQUENCE)?;
    // The version may be missing. Then come serial number, signature algorithm and issuer.
    if Element::read(fields)?.tag == VERSION {
        fields = Element::read(fields)?.rest;
    }
    for _ in 0..3 {
        fields = Element::read(fields)?.rest;
    }
    let validity = Element::read(fields)?.within(SEQUENCE)?;
    let not_after = Element::read(Element::read(validity)?.rest)?;
    let text = std::str::from_utf8(not_after.content).ok()?;
    let text = match not_after.tag {
        GENERALIZED_TIME => text.to_owned(),
        // RFC 5280: years from 50 on are of the last century.
        UTC_TIME => format!("{}{text}", if text.get(..2)? < "50" { "20" } else { "19" }),
        _ => return None,
    };
    let time = DateTime::strptime("%Y%m%d%H%M%SZ", text).ok()?;
    Some(time.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

/// One element of DER, and what comes after it.
struct Element<'a> {
    tag: u8,
    content: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Element<'a> {
    fn read(der: &'a [u8]) -> Option<Self> {
        let (&tag, der) = der.split_first()?;
        let (&first, der) = der.split_first()?;
        let (length, der) = match first {
            0..=0x7f => (usize::from(first), der),
            // The number of bytes of the length.
            0x81..=0x84 => {
                let (length, der) = der.split_at_checked(usize::from(first & 0x7f))?;
                (length.iter().fold(0, |sum: usize, byte| sum << 8 | usize::from(*byte)), der)
            }
            _ => return None,
        };
        let (content, rest) = der.split_at_checked(length)?;
        Some(Self { tag, content, rest })
    }

    fn within(self, tag: u8) -> Option<&'a [u8]> {
        (self.tag == tag).then_some(self.content)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test should panic")]
mod tests {
    use proptest::prelude::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn ending(year: i32) -> Vec<u8> {
        let mut params = CertificateParams::new(vec!["a.svc".to_owned()]).unwrap();
        params.not_after = date_time_ymd(year, 2, 28);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn end_of_a_certificate_is_read_in_both_forms() {
        for year in [2027, 2049, 2050, 2099] {
            let expected = format!("{year}-02-28T00:00:00Z");
            assert_eq!(expiry(&ending(year)).unwrap().to_string(), expected);
        }
    }

    #[test]
    fn what_is_cut_off_has_no_end() {
        let whole = ending(2030);
        for length in 0..whole.len() {
            assert_eq!(expiry(&whole[..length]), None, "{length} bytes");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(at in 0_usize..300, byte in any::<u8>()) {
            let mut changed = ending(2030);
            if let Some(place) = changed.get_mut(at) {
                *place = byte;
            }
            let _ = expiry(&changed);
        }
    }
}
