//! Bounds-checked reading of the boxes of an ISO base media file (ISO/IEC 14496-12) and of QuickTime.

/// Big-endian fields, front to back. Every read past the end is `None`.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub(super) fn skip(&mut self, count: usize) -> Option<()> {
        self.bytes(count).map(drop)
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_be_bytes)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    pub(super) fn i32(&mut self) -> Option<i32> {
        self.array().map(i32::from_be_bytes)
    }

    /// A field of 64 bits if `wide`, else 32.
    pub(super) fn sized(&mut self, wide: bool) -> Option<u64> {
        if wide { self.u64() } else { self.u32().map(u64::from) }
    }

    /// Version and flags of a full box.
    pub(super) fn version(&mut self) -> Option<(u8, u32)> {
        let word = self.u32()?;
        Some(((word >> 24) as u8, word & 0x00FF_FFFF))
    }
}

/// Type, header size and whole size of a box; size 0 stands for "to the end of the file".
pub(super) struct Header {
    pub(super) kind: [u8; 4],
    pub(super) header: u64,
    pub(super) size: u64,
}

impl Header {
    /// Reads a header from its first 16 bytes (8 are enough for all but large boxes).
    pub(super) fn parse(start: &[u8]) -> Option<Self> {
        let mut fields = Fields(start);
        let size = fields.u32()?;
        let kind = fields.array()?;
        match size {
            0 => Some(Self { kind, header: 8, size: 0 }),
            1 => fields.u64().filter(|size| *size >= 16).map(|size| Self { kind, header: 16, size }),
            2..=7 => None,
            _ => Some(Self { kind, header: 8, size: size.into() }),
        }
    }
}

/// The boxes inside a box: type and content. Ends at the first one that does not fit its parent.
pub(super) struct Boxes<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for Boxes<'a> {
    type Item = ([u8; 4], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let header = Header::parse(self.0)?;
        let size = if header.size == 0 { self.0.len() } else { usize::try_from(header.size).ok()? };
        let (whole, rest) = self.0.split_at_checked(size)?;
        self.0 = rest;
        Some((header.kind, whole.get(header.header as usize..)?))
    }
}

/// The first box of a type inside a box.
pub(super) fn child<'a>(parent: &'a [u8], kind: &[u8; 4]) -> Option<&'a [u8]> {
    Boxes(parent).find(|(found, _)| found == kind).map(|(_, content)| content)
}
