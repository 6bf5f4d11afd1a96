//! The S3 operations that Ebb has, by name. Every other one is answered with `NotImplemented`.

use super::Gateway;
use super::backend::Backend;
use s3s::dto::*;
use s3s::{S3, S3Request, S3Response, S3Result};

macro_rules! answer {
    ($output:expr) => {
        Ok(S3Response::new($output))
    };
}

#[async_trait::async_trait]
impl<B: Backend> S3 for Gateway<B> {
    async fn list_buckets(
        &self,
        req: S3Request<ListBucketsInput>,
    ) -> S3Result<S3Response<ListBucketsOutput>> {
        answer!(self.buckets(req.input).await?)
    }

    async fn create_bucket(
        &self,
        req: S3Request<CreateBucketInput>,
    ) -> S3Result<S3Response<CreateBucketOutput>> {
        let location = Some(format!("/{}", req.input.bucket));
        self.create_bucket_named(req.input.bucket).await?;
        answer!(CreateBucketOutput { location })
    }

    async fn delete_bucket(
        &self,
        req: S3Request<DeleteBucketInput>,
    ) -> S3Result<S3Response<DeleteBucketOutput>> {
        self.delete_bucket_named(req.input.bucket).await?;
        answer!(DeleteBucketOutput::default())
    }

    async fn head_bucket(&self, req: S3Request<HeadBucketInput>) -> S3Result<S3Response<HeadBucketOutput>> {
        self.check_bucket(req.input.bucket).await?;
        answer!(HeadBucketOutput::default())
    }

    /// Empty: the default region. A signature for any region is accepted.
    async fn get_bucket_location(
        &self,
        req: S3Request<GetBucketLocationInput>,
    ) -> S3Result<S3Response<GetBucketLocationOutput>> {
        self.check_bucket(req.input.bucket).await?;
        answer!(GetBucketLocationOutput::default())
    }

    /// Empty: versioning was never switched on.
    async fn get_bucket_versioning(
        &self,
        req: S3Request<GetBucketVersioningInput>,
    ) -> S3Result<S3Response<GetBucketVersioningOutput>> {
        self.check_bucket(req.input.bucket).await?;
        answer!(GetBucketVersioningOutput::default())
    }

    async fn list_objects(
        &self,
        req: S3Request<ListObjectsInput>,
    ) -> S3Result<S3Response<ListObjectsOutput>> {
        answer!(self.list_v1(req.input).await?)
    }

    async fn list_objects_v2(
        &self,
        req: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        answer!(self.list_v2(req.input).await?)
    }

    async fn put_object(&self, req: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        answer!(self.put(req).await?)
    }

    async fn get_object(&self, req: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        answer!(self.get(req).await?)
    }

    async fn head_object(&self, req: S3Request<HeadObjectInput>) -> S3Result<S3Response<HeadObjectOutput>> {
        answer!(self.head(req).await?)
    }

    async fn get_object_attributes(
        &self,
        req: S3Request<GetObjectAttributesInput>,
    ) -> S3Result<S3Response<GetObjectAttributesOutput>> {
        answer!(self.attributes(req).await?)
    }

    async fn delete_object(
        &self,
        req: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        answer!(self.delete(req).await?)
    }

    async fn delete_objects(
        &self,
        req: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        answer!(self.delete_many(req).await?)
    }

    async fn copy_object(&self, req: S3Request<CopyObjectInput>) -> S3Result<S3Response<CopyObjectOutput>> {
        answer!(self.copy(req).await?)
    }

    async fn create_multipart_upload(
        &self,
        req: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        answer!(self.create_upload(req).await?)
    }

    async fn upload_part(&self, req: S3Request<UploadPartInput>) -> S3Result<S3Response<UploadPartOutput>> {
        answer!(self.put_part(req).await?)
    }

    async fn upload_part_copy(
        &self,
        req: S3Request<UploadPartCopyInput>,
    ) -> S3Result<S3Response<UploadPartCopyOutput>> {
        answer!(self.copy_part(req).await?)
    }

    async fn complete_multipart_upload(
        &self,
        req: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        answer!(self.complete(req).await?)
    }

    async fn abort_multipart_upload(
        &self,
        req: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        self.abort(req.input).await?;
        answer!(AbortMultipartUploadOutput::default())
    }

    async fn list_parts(&self, req: S3Request<ListPartsInput>) -> S3Result<S3Response<ListPartsOutput>> {
        answer!(self.list_parts_of(req.input).await?)
    }

    async fn list_multipart_uploads(
        &self,
        req: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        answer!(self.list_uploads(req.input).await?)
    }
}
