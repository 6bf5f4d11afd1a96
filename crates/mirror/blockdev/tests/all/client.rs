//! A client of the tests' own, with simple replies.

use std::io;
use std::net::SocketAddr;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const FLUSH: u16 = 3;
pub const ZEROES: u16 = 6;
pub const FUA: u16 = 1;

pub struct Client<S = TcpStream> {
    pub stream: S,
}

pub fn header(command: u16, flags: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes
}

impl Client {
    pub async fn connect(address: SocketAddr) -> Client {
        Client::open(TcpStream::connect(address).await.unwrap(), "").await
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    /// Opens an export the old way.
    pub async fn open(mut stream: S, export: &str) -> Client<S> {
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).await.unwrap();
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        let mut hello = vec![0, 0, 0, 3];
        hello.extend(b"IHAVEOPT\0\0\0\x01");
        hello.extend((export.len() as u32).to_be_bytes());
        hello.extend(export.as_bytes());
        stream.write_all(&hello).await.unwrap();
        let mut size_and_flags = [0; 10];
        stream.read_exact(&mut size_and_flags).await.unwrap();
        Client { stream }
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// The cookie and the error of the next reply; the payload of a read is still to come.
    pub async fn reply(&mut self) -> io::Result<(u64, u32)> {
        let mut bytes = [0; 16];
        self.stream.read_exact(&mut bytes).await?;
        let number = |range: std::ops::Range<usize>| {
            bytes[range].iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte))
        };
        assert_eq!(number(0..4), 0x6744_6698);
        Ok((number(8..16), number(4..8) as u32))
    }

    pub async fn payload(&mut self, length: usize) -> Vec<u8> {
        let mut payload = vec![0; length];
        self.stream.read_exact(&mut payload).await.unwrap();
        payload
    }

    /// A request that succeeds, and what it read.
    pub async fn call(&mut self, command: u16, flags: u16, offset: u64, length: u32, data: &[u8]) -> Vec<u8> {
        let mut bytes = header(command, flags, 77, offset, length);
        bytes.extend(data);
        self.send(&bytes).await;
        assert_eq!(self.reply().await.unwrap(), (77, 0));
        self.payload(if command == READ { length as usize } else { 0 }).await
    }

    pub async fn write(&mut self, offset: u64, data: &[u8]) {
        self.call(WRITE, 0, offset, data.len() as u32, data).await;
    }

    pub async fn read(&mut self, offset: u64, length: u32) -> Vec<u8> {
        self.call(READ, 0, offset, length, &[]).await
    }
}
