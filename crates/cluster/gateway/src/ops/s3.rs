//! The S3 operations that Ebb supports. All others are refused before they come here ([`crate::http::understood`]).

use crate::bytes::backend::Backend;
use crate::convert::{REGION, check_version, url_encoded};
use crate::gateway::Gateway;
use crate::ops::bucket::{check_acl, grants};
use crate::ops::list::owner;
use crate::ops::rules::LEAST_SIZE;
use crate::ops::{cors, lifecycle, list, tags};
use ebb_types::BucketSetting;
use hyper::{Method, StatusCode};
use s3s::dto::*;
use s3s::{S3, S3Request, S3Response, S3Result};
use std::sync::Arc;

/// Where the object of a form is.
#[derive(Clone)]
pub struct Place(pub String);

/// The gateway in the form the library requires.
pub struct Operations<B>(pub Arc<Gateway<B>>);

macro_rules! answer {
    ($output:expr) => {
        Ok(S3Response::new($output))
    };
}

#[async_trait::async_trait]
impl<B: Backend> S3 for Operations<B> {
    async fn list_buckets(
        &self,
        req: S3Request<ListBucketsInput>,
    ) -> S3Result<S3Response<ListBucketsOutput>> {
        let key = req.credentials.and_then(|credentials| self.0.keys.get(&credentials.access_key));
        answer!(self.0.buckets.list(req.input, key).await?)
    }

    async fn create_bucket(
        &self,
        req: S3Request<CreateBucketInput>,
    ) -> S3Result<S3Response<CreateBucketOutput>> {
        let location = Some(format!("/{}", req.input.bucket));
        self.0.buckets.create(req.input).await?;
        answer!(CreateBucketOutput { location })
    }

    async fn delete_bucket(
        &self,
        req: S3Request<DeleteBucketInput>,
    ) -> S3Result<S3Response<DeleteBucketOutput>> {
        self.0.buckets.delete(req.input.bucket).await?;
        answer!(DeleteBucketOutput::default())
    }

    async fn head_bucket(&self, req: S3Request<HeadBucketInput>) -> S3Result<S3Response<HeadBucketOutput>> {
        let location = self.0.buckets.location(req.input.bucket).await?;
        let region =
            location.filter(|name| !self.0.buckets.is_pool(name)).unwrap_or_else(|| REGION.to_owned());
        answer!(HeadBucketOutput { bucket_region: Some(region), ..Default::default() })
    }

    /// The bucket's pool; empty: the replicated one. A signature for any region is accepted, whatever location the
    /// bucket reports.
    async fn get_bucket_location(
        &self,
        req: S3Request<GetBucketLocationInput>,
    ) -> S3Result<S3Response<GetBucketLocationOutput>> {
        let location = self.0.buckets.location(req.input.bucket).await?;
        answer!(GetBucketLocationOutput { location_constraint: location.map(BucketLocationConstraint::from) })
    }

    /// Empty: versioning was never enabled.
    async fn get_bucket_versioning(
        &self,
        req: S3Request<GetBucketVersioningInput>,
    ) -> S3Result<S3Response<GetBucketVersioningOutput>> {
        self.0.buckets.check(req.input.bucket).await?;
        answer!(GetBucketVersioningOutput::default())
    }

    async fn list_objects(
        &self,
        req: S3Request<ListObjectsInput>,
    ) -> S3Result<S3Response<ListObjectsOutput>> {
        answer!(list::v1(&self.0.names, req.input).await?)
    }

    async fn list_objects_v2(
        &self,
        req: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        answer!(list::v2(&self.0.names, req.input).await?)
    }

    /// Forms come here, too; their answer tells where the object is.
    async fn put_object(&self, req: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        let place = || format!("/{}/{}", req.input.bucket, url_encoded(&req.input.key));
        let place = (req.method == Method::POST).then(place);
        let mut response = S3Response::new(self.0.objects.put(req).await?);
        if let Some(place) = place {
            response.extensions.insert(Place(place));
        }
        Ok(response)
    }

    async fn get_object(&self, req: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        answer!(self.0.objects.get(req).await?)
    }

    async fn head_object(&self, req: S3Request<HeadObjectInput>) -> S3Result<S3Response<HeadObjectOutput>> {
        self.0.objects.head(req).await
    }

    /// The polite way to read from servers that sleep: 202 if they are being woken, 200 if they are awake.
    async fn restore_object(
        &self,
        req: S3Request<RestoreObjectInput>,
    ) -> S3Result<S3Response<RestoreObjectOutput>> {
        let slept = self.0.objects.restore(req.input).await?;
        let status = slept.then_some(StatusCode::ACCEPTED);
        Ok(S3Response { status, ..S3Response::new(RestoreObjectOutput::default()) })
    }

    async fn get_object_attributes(
        &self,
        req: S3Request<GetObjectAttributesInput>,
    ) -> S3Result<S3Response<GetObjectAttributesOutput>> {
        answer!(self.0.objects.attributes(req).await?)
    }

    async fn delete_object(
        &self,
        req: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        answer!(self.0.objects.delete(req).await?)
    }

    async fn delete_objects(
        &self,
        req: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        answer!(self.0.objects.delete_many(req).await?)
    }

    async fn copy_object(&self, req: S3Request<CopyObjectInput>) -> S3Result<S3Response<CopyObjectOutput>> {
        answer!(self.0.objects.copy(req).await?)
    }

    async fn create_multipart_upload(
        &self,
        req: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        answer!(self.0.uploads.create(req).await?)
    }

    async fn upload_part(&self, req: S3Request<UploadPartInput>) -> S3Result<S3Response<UploadPartOutput>> {
        answer!(self.0.uploads.put_part(req).await?)
    }

    async fn upload_part_copy(
        &self,
        req: S3Request<UploadPartCopyInput>,
    ) -> S3Result<S3Response<UploadPartCopyOutput>> {
        answer!(self.0.uploads.copy_part(req).await?)
    }

    async fn complete_multipart_upload(
        &self,
        req: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        answer!(self.0.uploads.complete(req).await?)
    }

    async fn abort_multipart_upload(
        &self,
        req: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        self.0.uploads.abort(req.input).await?;
        answer!(AbortMultipartUploadOutput::default())
    }

    async fn list_parts(&self, req: S3Request<ListPartsInput>) -> S3Result<S3Response<ListPartsOutput>> {
        answer!(self.0.uploads.list_parts(req.input).await?)
    }

    async fn list_multipart_uploads(
        &self,
        req: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        answer!(self.0.uploads.list(req.input).await?)
    }

    async fn list_object_versions(
        &self,
        req: S3Request<ListObjectVersionsInput>,
    ) -> S3Result<S3Response<ListObjectVersionsOutput>> {
        answer!(list::versions(&self.0.names, req.input).await?)
    }

    async fn get_object_tagging(
        &self,
        req: S3Request<GetObjectTaggingInput>,
    ) -> S3Result<S3Response<GetObjectTaggingOutput>> {
        answer!(tags::get(&self.0.names, req.input).await?)
    }

    async fn put_object_tagging(
        &self,
        req: S3Request<PutObjectTaggingInput>,
    ) -> S3Result<S3Response<PutObjectTaggingOutput>> {
        tags::set(&self.0.names, req.input).await?;
        answer!(PutObjectTaggingOutput::default())
    }

    async fn delete_object_tagging(
        &self,
        req: S3Request<DeleteObjectTaggingInput>,
    ) -> S3Result<S3Response<DeleteObjectTaggingOutput>> {
        tags::remove(&self.0.names, req.input).await?;
        answer!(DeleteObjectTaggingOutput::default())
    }

    async fn get_bucket_tagging(
        &self,
        req: S3Request<GetBucketTaggingInput>,
    ) -> S3Result<S3Response<GetBucketTaggingOutput>> {
        answer!(self.0.buckets.tags(req.input.bucket).await?)
    }

    async fn put_bucket_tagging(
        &self,
        req: S3Request<PutBucketTaggingInput>,
    ) -> S3Result<S3Response<PutBucketTaggingOutput>> {
        self.0.buckets.set_tags(req.input.bucket, req.input.tagging).await?;
        answer!(PutBucketTaggingOutput::default())
    }

    async fn delete_bucket_tagging(
        &self,
        req: S3Request<DeleteBucketTaggingInput>,
    ) -> S3Result<S3Response<DeleteBucketTaggingOutput>> {
        self.0.buckets.set(req.input.bucket, BucketSetting::Tags, None).await?;
        answer!(DeleteBucketTaggingOutput::default())
    }

    async fn get_bucket_cors(
        &self,
        req: S3Request<GetBucketCorsInput>,
    ) -> S3Result<S3Response<GetBucketCorsOutput>> {
        answer!(GetBucketCorsOutput {
            cors_rules: Some(cors::rules(&self.0.buckets, req.input.bucket).await?)
        })
    }

    async fn put_bucket_cors(
        &self,
        req: S3Request<PutBucketCorsInput>,
    ) -> S3Result<S3Response<PutBucketCorsOutput>> {
        cors::set(&self.0.buckets, req.input.bucket, req.input.cors_configuration).await?;
        answer!(PutBucketCorsOutput::default())
    }

    async fn delete_bucket_cors(
        &self,
        req: S3Request<DeleteBucketCorsInput>,
    ) -> S3Result<S3Response<DeleteBucketCorsOutput>> {
        self.0.buckets.set(req.input.bucket, BucketSetting::Cors, None).await?;
        answer!(DeleteBucketCorsOutput::default())
    }

    async fn get_bucket_lifecycle_configuration(
        &self,
        req: S3Request<GetBucketLifecycleConfigurationInput>,
    ) -> S3Result<S3Response<GetBucketLifecycleConfigurationOutput>> {
        let rules = Some(lifecycle::rules(&self.0.buckets, req.input.bucket).await?);
        let least = Some(TransitionDefaultMinimumObjectSize::from_static(LEAST_SIZE));
        answer!(GetBucketLifecycleConfigurationOutput {
            rules,
            transition_default_minimum_object_size: least
        })
    }

    async fn put_bucket_lifecycle_configuration(
        &self,
        req: S3Request<PutBucketLifecycleConfigurationInput>,
    ) -> S3Result<S3Response<PutBucketLifecycleConfigurationOutput>> {
        lifecycle::set(&self.0.buckets, req.input).await?;
        let least = Some(TransitionDefaultMinimumObjectSize::from_static(LEAST_SIZE));
        answer!(PutBucketLifecycleConfigurationOutput { transition_default_minimum_object_size: least })
    }

    async fn delete_bucket_lifecycle(
        &self,
        req: S3Request<DeleteBucketLifecycleInput>,
    ) -> S3Result<S3Response<DeleteBucketLifecycleOutput>> {
        self.0.buckets.set(req.input.bucket, BucketSetting::Lifecycle, None).await?;
        answer!(DeleteBucketLifecycleOutput::default())
    }

    async fn get_bucket_acl(
        &self,
        req: S3Request<GetBucketAclInput>,
    ) -> S3Result<S3Response<GetBucketAclOutput>> {
        self.0.buckets.check(req.input.bucket).await?;
        answer!(GetBucketAclOutput { grants: Some(grants()), owner: Some(owner()) })
    }

    async fn get_object_acl(
        &self,
        req: S3Request<GetObjectAclInput>,
    ) -> S3Result<S3Response<GetObjectAclOutput>> {
        check_version(req.input.version_id.as_deref())?;
        self.0.names.object(&req.input.bucket, &req.input.key).await?;
        answer!(GetObjectAclOutput { grants: Some(grants()), owner: Some(owner()), ..Default::default() })
    }

    async fn put_bucket_acl(
        &self,
        req: S3Request<PutBucketAclInput>,
    ) -> S3Result<S3Response<PutBucketAclOutput>> {
        check_acl(req.input.acl.is_some(), req.input.access_control_policy)?;
        self.0.buckets.check(req.input.bucket).await?;
        answer!(PutBucketAclOutput::default())
    }

    async fn put_object_acl(
        &self,
        req: S3Request<PutObjectAclInput>,
    ) -> S3Result<S3Response<PutObjectAclOutput>> {
        check_version(req.input.version_id.as_deref())?;
        check_acl(req.input.acl.is_some(), req.input.access_control_policy)?;
        self.0.names.object(&req.input.bucket, &req.input.key).await?;
        answer!(PutObjectAclOutput::default())
    }

    /// Access lists are not supported, so everything belongs to the bucket's owner.
    async fn get_bucket_ownership_controls(
        &self,
        req: S3Request<GetBucketOwnershipControlsInput>,
    ) -> S3Result<S3Response<GetBucketOwnershipControlsOutput>> {
        self.0.buckets.check(req.input.bucket).await?;
        let object_ownership = ObjectOwnership::from_static(ObjectOwnership::BUCKET_OWNER_ENFORCED);
        let ownership_controls =
            Some(OwnershipControls { rules: vec![OwnershipControlsRule { object_ownership }] });
        answer!(GetBucketOwnershipControlsOutput { ownership_controls })
    }

    async fn get_bucket_request_payment(
        &self,
        req: S3Request<GetBucketRequestPaymentInput>,
    ) -> S3Result<S3Response<GetBucketRequestPaymentOutput>> {
        self.0.buckets.check(req.input.bucket).await?;
        answer!(GetBucketRequestPaymentOutput { payer: Some(Payer::from_static(Payer::BUCKET_OWNER)) })
    }

    async fn get_bucket_policy(
        &self,
        req: S3Request<GetBucketPolicyInput>,
    ) -> S3Result<S3Response<GetBucketPolicyOutput>> {
        self.0.buckets.unset(req.input.bucket, "NoSuchBucketPolicy", "policy").await
    }

    async fn get_bucket_policy_status(
        &self,
        req: S3Request<GetBucketPolicyStatusInput>,
    ) -> S3Result<S3Response<GetBucketPolicyStatusOutput>> {
        self.0.buckets.unset(req.input.bucket, "NoSuchBucketPolicy", "policy").await
    }

    async fn get_bucket_website(
        &self,
        req: S3Request<GetBucketWebsiteInput>,
    ) -> S3Result<S3Response<GetBucketWebsiteOutput>> {
        self.0.buckets.unset(req.input.bucket, "NoSuchWebsiteConfiguration", "website").await
    }

    async fn get_bucket_encryption(
        &self,
        req: S3Request<GetBucketEncryptionInput>,
    ) -> S3Result<S3Response<GetBucketEncryptionOutput>> {
        self.0
            .buckets
            .unset(req.input.bucket, "ServerSideEncryptionConfigurationNotFoundError", "encryption")
            .await
    }

    async fn get_bucket_replication(
        &self,
        req: S3Request<GetBucketReplicationInput>,
    ) -> S3Result<S3Response<GetBucketReplicationOutput>> {
        self.0.buckets.unset(req.input.bucket, "ReplicationConfigurationNotFoundError", "replication").await
    }

    async fn get_object_lock_configuration(
        &self,
        req: S3Request<GetObjectLockConfigurationInput>,
    ) -> S3Result<S3Response<GetObjectLockConfigurationOutput>> {
        self.0.buckets.unset(req.input.bucket, "ObjectLockConfigurationNotFoundError", "object lock").await
    }

    async fn get_object_retention(
        &self,
        req: S3Request<GetObjectRetentionInput>,
    ) -> S3Result<S3Response<GetObjectRetentionOutput>> {
        self.0.buckets.unset(req.input.bucket, "NoSuchObjectLockConfiguration", "object lock").await
    }

    async fn get_object_legal_hold(
        &self,
        req: S3Request<GetObjectLegalHoldInput>,
    ) -> S3Result<S3Response<GetObjectLegalHoldOutput>> {
        self.0.buckets.unset(req.input.bucket, "NoSuchObjectLockConfiguration", "object lock").await
    }

    async fn get_public_access_block(
        &self,
        req: S3Request<GetPublicAccessBlockInput>,
    ) -> S3Result<S3Response<GetPublicAccessBlockOutput>> {
        self.0
            .buckets
            .unset(req.input.bucket, "NoSuchPublicAccessBlockConfiguration", "public access block")
            .await
    }

    async fn get_bucket_logging(
        &self,
        req: S3Request<GetBucketLoggingInput>,
    ) -> S3Result<S3Response<GetBucketLoggingOutput>> {
        self.0.buckets.check(req.input.bucket).await?;
        answer!(GetBucketLoggingOutput::default())
    }

    async fn get_bucket_notification_configuration(
        &self,
        req: S3Request<GetBucketNotificationConfigurationInput>,
    ) -> S3Result<S3Response<GetBucketNotificationConfigurationOutput>> {
        self.0.buckets.check(req.input.bucket).await?;
        answer!(GetBucketNotificationConfigurationOutput::default())
    }

    async fn get_bucket_accelerate_configuration(
        &self,
        req: S3Request<GetBucketAccelerateConfigurationInput>,
    ) -> S3Result<S3Response<GetBucketAccelerateConfigurationOutput>> {
        self.0.buckets.check(req.input.bucket).await?;
        answer!(GetBucketAccelerateConfigurationOutput::default())
    }

    async fn delete_bucket_policy(
        &self,
        req: S3Request<DeleteBucketPolicyInput>,
    ) -> S3Result<S3Response<DeleteBucketPolicyOutput>> {
        self.0.buckets.check(req.input.bucket).await?;
        answer!(DeleteBucketPolicyOutput::default())
    }

    async fn delete_bucket_website(
        &self,
        req: S3Request<DeleteBucketWebsiteInput>,
    ) -> S3Result<S3Response<DeleteBucketWebsiteOutput>> {
        self.0.buckets.check(req.input.bucket).await?;
        answer!(DeleteBucketWebsiteOutput::default())
    }

    async fn delete_bucket_encryption(
        &self,
        req: S3Request<DeleteBucketEncryptionInput>,
    ) -> S3Result<S3Response<DeleteBucketEncryptionOutput>> {
        self.0.buckets.check(req.input.bucket).await?;
        answer!(DeleteBucketEncryptionOutput::default())
    }

    async fn delete_bucket_replication(
        &self,
        req: S3Request<DeleteBucketReplicationInput>,
    ) -> S3Result<S3Response<DeleteBucketReplicationOutput>> {
        self.0.buckets.check(req.input.bucket).await?;
        answer!(DeleteBucketReplicationOutput::default())
    }

    async fn delete_public_access_block(
        &self,
        req: S3Request<DeletePublicAccessBlockInput>,
    ) -> S3Result<S3Response<DeletePublicAccessBlockOutput>> {
        self.0.buckets.check(req.input.bucket).await?;
        answer!(DeletePublicAccessBlockOutput::default())
    }
}
